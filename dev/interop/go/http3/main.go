// HTTP/3 and WebSockets on its streams (RFC 9220) with quic-go, against the server: http3 HOST:PORT CERTIFICATE
//
// Prints `ok NAME` or `FAIL NAME: why` for each check.
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
	"net/http"
	"os"
	"strings"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"sinews/interop/suite"
)

const (
	requests = 300
	sockets  = 8
	text     = 0x81
	close    = 0x88
)

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

// A WebSocket on a stream, without compression.
type socket struct {
	stream *http3.RequestStream
	reader *bufio.Reader
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

func open(ctx context.Context, client *http3.ClientConn, url string) (*socket, int, error) {
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
	return &socket{stream, bufio.NewReader(stream)}, response.StatusCode, nil
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
	_, err := ws.stream.Write(frame)
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
	ws.stream.Close()
	if _, err := ws.reader.ReadByte(); err != io.EOF {
		return fmt.Errorf("the stream does not end after Close: %v", err)
	}
	return nil
}

func (s server) websockets(ctx context.Context) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer client.CloseWithError(0x100, "")
	var all []*socket
	for range sockets {
		ws, status, err := open(ctx, client, "https://"+s.address+"/echo")
		if err != nil {
			return err
		}
		if status != 200 {
			return fmt.Errorf("status %d", status)
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
	certificate, err := os.ReadFile(os.Args[2])
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	trust := &tls.Config{RootCAs: roots, NextProtos: []string{http3.NextProtoH3}}
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
