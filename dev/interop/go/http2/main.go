// WebSockets over HTTP/2 with golang.org/x/net/http2, against the server: http2 http://HOST:PORT https://HOST:PORT CERTIFICATE
//
// Go sends an extended CONNECT (RFC 8441) with the variable GODEBUG=http2xconnect=1 only, which the caller sets. Prints `ok NAME`
// or `FAIL NAME: why` for each check.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"golang.org/x/net/http2"

	"sinews/interop/suite"
)

const sockets = 8

const (
	text  = 0x81
	close = 0x88
)

// A WebSocket on a stream, without compression.
type socket struct {
	response *http.Response
	body     io.WriteCloser
	reader   *bufio.Reader
}

func open(ctx context.Context, client http.RoundTripper, url string) (*socket, error) {
	body, sent := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, http.MethodConnect, url, body)
	if err != nil {
		return nil, err
	}
	request.Header[":protocol"] = []string{"websocket"}
	request.Header.Set("Sec-WebSocket-Version", "13")
	response, err := client.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	return &socket{response, sent, bufio.NewReader(response.Body)}, nil
}

func (ws *socket) send(first byte, payload []byte) error {
	frame := []byte{first}
	if len(payload) < 126 {
		frame = append(frame, 0x80|byte(len(payload)))
	} else {
		frame = binary.BigEndian.AppendUint64(append(frame, 0x80|127), uint64(len(payload)))
	}
	mask := make([]byte, 4)
	rand.Read(mask)
	frame = append(frame, mask...)
	for at, octet := range payload {
		frame = append(frame, octet^mask[at%4])
	}
	_, err := ws.body.Write(frame)
	return err
}

func (ws *socket) receive() (byte, []byte, error) {
	head := make([]byte, 2)
	if _, err := io.ReadFull(ws.reader, head); err != nil {
		return 0, nil, err
	}
	length := uint64(head[1])
	if length >= 126 {
		more := make([]byte, 8)
		from := 0
		if length == 126 {
			from = 6
		}
		if _, err := io.ReadFull(ws.reader, more[from:]); err != nil {
			return 0, nil, err
		}
		length = binary.BigEndian.Uint64(more)
	}
	payload := make([]byte, length)
	_, err := io.ReadFull(ws.reader, payload)
	return head[0], payload, err
}

func (ws *socket) echo(message []byte) error {
	// Both directions at a time: a long message exceeds the windows.
	sent := make(chan error, 1)
	go func() { sent <- ws.send(text, message) }()
	first, payload, err := ws.receive()
	if err == nil && (first != text || !bytes.Equal(payload, message)) {
		err = fmt.Errorf("%d octets of %#x in place of %d", len(payload), first, len(message))
	}
	return errors.Join(err, <-sent)
}

func (ws *socket) end() error {
	if err := ws.send(close, []byte{3, 232}); err != nil {
		return err
	}
	first, payload, err := ws.receive()
	if err != nil {
		return err
	}
	if first != close || !bytes.Equal(payload, []byte{3, 232}) {
		return fmt.Errorf("%#x %v in place of Close 1000", first, payload)
	}
	ws.body.Close()
	if _, err := ws.reader.ReadByte(); err != io.EOF {
		return fmt.Errorf("the stream does not end after Close: %v", err)
	}
	return nil
}

func websockets(ctx context.Context, client http.RoundTripper, url string) error {
	var all []*socket
	for range sockets {
		ws, err := open(ctx, client, url+"/echo")
		if err != nil {
			return err
		}
		if ws.response.StatusCode != 200 || ws.response.ProtoMajor != 2 {
			return fmt.Errorf("%s %s", ws.response.Proto, ws.response.Status)
		}
		all = append(all, ws)
	}
	for at, ws := range all {
		for _, message := range [][]byte{fmt.Appendf(nil, "hello %d", at), bytes.Repeat([]byte("x"), 300_000)} {
			if err := ws.echo(message); err != nil {
				return fmt.Errorf("socket %d: %w", at, err)
			}
		}
	}
	for at, ws := range all {
		if err := ws.end(); err != nil {
			return fmt.Errorf("socket %d: %w", at, err)
		}
	}
	return nil
}

func rejection(ctx context.Context, client http.RoundTripper, url string) error {
	ws, err := open(ctx, client, url+"/nowhere")
	if err != nil {
		return err
	}
	defer ws.body.Close()
	if ws.response.StatusCode != 404 {
		return fmt.Errorf("%s in place of 404", ws.response.Status)
	}
	return nil
}

func request(ctx context.Context, client http.RoundTripper, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/healthz", nil)
	if err != nil {
		return err
	}
	response, err := client.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && (response.ProtoMajor != 2 || string(body) != "ok\n") {
		err = fmt.Errorf("%s %q", response.Proto, body)
	}
	return err
}

func main() {
	plain := &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, address)
		},
	}
	certificate, err := os.ReadFile(os.Args[3])
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	encrypted := &http2.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	var checks []suite.Check
	for _, to := range []struct {
		name, url string
		client    http.RoundTripper
	}{{"clear text", os.Args[1], plain}, {"TLS", os.Args[2], encrypted}} {
		for _, check := range []struct {
			name string
			run  func(context.Context, http.RoundTripper, string) error
		}{{"WebSockets", websockets}, {"a rejection", rejection}, {"a request", request}} {
			run := func(ctx context.Context) error { return check.run(ctx, to.client, to.url) }
			checks = append(checks, suite.Check{Name: check.name + ", " + to.name, Run: run})
		}
	}
	suite.RunChecks(checks)
}
