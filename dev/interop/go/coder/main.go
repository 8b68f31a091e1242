// The coder/websocket package against the server: coder BASE LIMITED
package main

import (
	"context"
	"net/http"

	"github.com/coder/websocket"

	"sinews/interop/suite"
)

type conn struct{ inner *websocket.Conn }

func main() {
	closeCode := func(err error) int { return max(0, int(websocket.CloseStatus(err))) }
	suite.Main(suite.Client{Name: "coder", Dial: dial, CloseCode: closeCode})
}

func dial(ctx context.Context, url string, deflate bool) (suite.Conn, http.Header, error) {
	options := &websocket.DialOptions{CompressionMode: websocket.CompressionDisabled}
	if deflate {
		options.CompressionMode = websocket.CompressionContextTakeover
	}
	inner, answer, err := websocket.Dial(ctx, url, options)
	if err != nil {
		return nil, nil, err
	}
	inner.SetReadLimit(-1)
	return &conn{inner}, answer.Header, nil
}

func (c *conn) Send(ctx context.Context, message suite.Message) error {
	kind := websocket.MessageBinary
	if message.Text {
		kind = websocket.MessageText
	}
	return c.inner.Write(ctx, kind, message.Data)
}

func (c *conn) SendParts(ctx context.Context, parts []string) error {
	writer, err := c.inner.Writer(ctx, websocket.MessageText)
	if err != nil {
		return err
	}
	// Each write is a frame.
	for _, part := range parts {
		if _, err := writer.Write([]byte(part)); err != nil {
			return err
		}
	}
	return writer.Close()
}

func (c *conn) Receive(ctx context.Context) (suite.Message, error) {
	kind, data, err := c.inner.Read(ctx)
	return suite.Message{Text: kind == websocket.MessageText, Data: data}, err
}

func (c *conn) Ping(ctx context.Context) error {
	// A reader has to run for the pong to be handled; it ends with the connection.
	c.inner.CloseRead(ctx)
	return c.inner.Ping(ctx)
}

// Close succeeds only if the server's Close has the same code.
func (c *conn) Close(_ context.Context, code int, reason string) (int, error) {
	if err := c.inner.Close(websocket.StatusCode(code), reason); err != nil {
		return 0, err
	}
	return code, nil
}
