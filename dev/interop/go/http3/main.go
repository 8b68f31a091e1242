// HTTP/3 and WebSockets on its streams (RFC 9220) with quic-go, against the server: http3 HOST:PORT CERTIFICATE
//
// Prints `ok NAME` or `FAIL NAME: why` for each check.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"sinews/interop/suite"
	"sinews/interop/wire"
)

// Requests at once in a check.
const requests = 300

type server struct {
	address string
	client  *http3.Transport
}

func (s server) ask(ctx context.Context, method, path string, body io.Reader) (*http.Response, string, error) {
	request, err := http.NewRequestWithContext(ctx, method, "https://"+s.address+path, body)
	if err != nil {
		return nil, "", err
	}
	response, err := s.client.RoundTrip(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.ProtoMajor != 3 {
		err = fmt.Errorf("%s in place of HTTP/3", response.Proto)
	}
	return response, string(content), err
}

func (s server) get(ctx context.Context) error {
	response, content, err := s.ask(ctx, http.MethodGet, "/healthz", nil)
	if err == nil && (response.StatusCode != 200 || content != "ok\n") {
		err = fmt.Errorf("%s %q", response.Status, content)
	}
	return err
}

func (s server) page(ctx context.Context) error {
	response, content, err := s.ask(ctx, http.MethodGet, "/sinews.js", nil)
	if err == nil && (response.StatusCode != 200 || !response.Uncompressed || !strings.Contains(content, "WebSocket")) {
		err = fmt.Errorf("%s, %d octets, gzip: %t", response.Status, len(content), response.Uncompressed)
	}
	return err
}

func (s server) post(ctx context.Context) error {
	for _, size := range []int{1, 1000, 500_000} {
		response, content, err := s.ask(ctx, http.MethodPost, "/topics/interop", bytes.NewReader(make([]byte, size)))
		if err != nil {
			return err
		}
		if response.StatusCode/100 != 2 {
			return fmt.Errorf("%d octets: %s %s", size, response.Status, content)
		}
	}
	return nil
}

func (s server) many(ctx context.Context) error {
	results := make(chan error, requests)
	for range requests {
		go func() { results <- s.get(ctx) }()
	}
	var all error
	for range requests {
		all = errors.Join(all, <-results)
	}
	return all
}

func (s server) missing(ctx context.Context) error {
	response, _, err := s.ask(ctx, http.MethodGet, "/nowhere", nil)
	if err == nil && response.StatusCode != 404 {
		err = fmt.Errorf("%s in place of 404", response.Status)
	}
	return err
}

func (s server) connect(ctx context.Context) (*http3.ClientConn, error) {
	conn, err := quic.DialAddr(ctx, s.address, s.client.TLSClientConfig, nil)
	if err != nil {
		return nil, err
	}
	client := s.client.NewClientConn(conn)
	select {
	case <-client.ReceivedSettings():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if !client.Settings().EnableExtendedConnect {
		return nil, errors.New("the server announces no extended CONNECT")
	}
	return client, nil
}

// open returns a WebSocket on a stream, and the status of the answer to its request.
func open(ctx context.Context, client *http3.ClientConn, url string) (*wire.Socket, int, error) {
	stream, err := client.OpenRequestStream(ctx)
	if err != nil {
		return nil, 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodConnect, url, nil)
	if err != nil {
		return nil, 0, err
	}
	request.Proto = "websocket"
	request.Header.Set("Sec-WebSocket-Version", "13")
	if err := stream.SendRequestHeader(request); err != nil {
		return nil, 0, err
	}
	response, err := stream.ReadResponse()
	if err != nil {
		return nil, 0, err
	}
	return wire.NewSocket(stream, stream), response.StatusCode, nil
}

func (s server) websockets(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer client.CloseWithError(0x100, "")
	return wire.Echo(func() (*wire.Socket, error) {
		ws, status, err := open(ctx, client, "https://"+s.address+"/echo")
		if err == nil && status != 200 {
			err = fmt.Errorf("status %d", status)
		}
		return ws, err
	})
}

func (s server) rejection(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer client.CloseWithError(0x100, "")
	_, status, err := open(ctx, client, "https://"+s.address+"/nowhere")
	if err == nil && status != 404 {
		err = fmt.Errorf("status %d in place of 404", status)
	}
	return err
}

func main() {
	trust := wire.Trust(os.Args[2], http3.NextProtoH3)
	s := server{os.Args[1], &http3.Transport{TLSClientConfig: trust}}
	suite.RunChecks([]suite.Check{
		{Name: "GET", Run: s.get},
		{Name: "a script in gzip", Run: s.page},
		{Name: "POST beyond the windows", Run: s.post},
		{Name: "many requests at once", Run: s.many},
		{Name: "no route", Run: s.missing},
		{Name: "WebSockets share a connection", Run: s.websockets},
		{Name: "WebSocket without a route", Run: s.rejection},
	})
}
