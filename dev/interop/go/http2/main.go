// WebSockets over HTTP/2 with golang.org/x/net/http2, against the server: http2 http://HOST:PORT https://HOST:PORT CERTIFICATE
//
// Go sends an extended CONNECT (RFC 8441) with the variable GODEBUG=http2xconnect=1 only, which the caller sets. Prints `ok NAME`
// or `FAIL NAME: why` for each check.
package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"golang.org/x/net/http2"

	"sinews/interop/suite"
	"sinews/interop/wire"
)

// open returns a WebSocket on a stream, and the answer to its request.
func open(ctx context.Context, client http.RoundTripper, url string) (*wire.Socket, *http.Response, error) {
	body, sent := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, http.MethodConnect, url, body)
	if err != nil {
		return nil, nil, err
	}
	request.Header[":protocol"] = []string{"websocket"}
	request.Header.Set("Sec-WebSocket-Version", "13")
	response, err := client.RoundTrip(request)
	if err != nil {
		return nil, nil, err
	}
	return wire.NewSocket(sent, response.Body), response, nil
}

func websockets(ctx context.Context, client http.RoundTripper, url string) error {
	return wire.Echo(func() (*wire.Socket, error) {
		ws, response, err := open(ctx, client, url+"/echo")
		if err == nil && (response.StatusCode != 200 || response.ProtoMajor != 2) {
			err = fmt.Errorf("%s %s", response.Proto, response.Status)
		}
		return ws, err
	})
}

func rejection(ctx context.Context, client http.RoundTripper, url string) error {
	ws, response, err := open(ctx, client, url+"/nowhere")
	if err != nil {
		return err
	}
	defer ws.Abandon()
	if response.StatusCode != 404 {
		return fmt.Errorf("%s in place of 404", response.Status)
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
	encrypted := &http2.Transport{TLSClientConfig: wire.Trust(os.Args[3])}
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
