// The gorilla/websocket package against the server: gorilla BASE LIMITED
package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"sinews/interop/suite"
)

type conn struct{ inner *websocket.Conn }

func main() {
	suite.Main(suite.Client{Name: "gorilla", Dial: dial, CloseCode: closeCode})
}

func dial(ctx context.Context, url string, deflate bool) (suite.Conn, http.Header, error) {
	// A small write buffer: a message written piece by piece then leaves in many fragments.
	dialer := websocket.Dialer{EnableCompression: deflate, WriteBufferSize: 1024}
	inner, answer, err := dialer.DialContext(ctx, url, nil)
	if err != nil {
		return nil, nil, err
	}
	inner.EnableWriteCompression(deflate)
	if deadline, ok := ctx.Deadline(); ok {
		inner.SetReadDeadline(deadline)
		inner.SetWriteDeadline(deadline)
	}
	return &conn{inner}, answer.Header, nil
}

func closeCode(err error) int {
	var closed *websocket.CloseError
	if errors.As(err, &closed) {
		return closed.Code
	}
	return 0
}

func (c *conn) Send(_ context.Context, message suite.Message) error {
	kind := websocket.BinaryMessage
	if message.Text {
		kind = websocket.TextMessage
	}
	return c.inner.WriteMessage(kind, message.Data)
}

func (c *conn) SendParts(_ context.Context, parts []string) error {
	writer, err := c.inner.NextWriter(websocket.TextMessage)
	if err != nil {
		return err
	}
	for _, part := range parts {
		if _, err := writer.Write([]byte(part)); err != nil {
			return err
		}
	}
	return writer.Close()
}

func (c *conn) Receive(context.Context) (suite.Message, error) {
	kind, data, err := c.inner.ReadMessage()
	return suite.Message{Text: kind == websocket.TextMessage, Data: data}, err
}

func (c *conn) Ping(ctx context.Context) error {
	seen := ""
	c.inner.SetPongHandler(func(payload string) error {
		seen = payload
		return nil
	})
	if err := c.inner.WriteControl(websocket.PingMessage, []byte("beat"), time.Now().Add(suite.Limit)); err != nil {
		return err
	}
	// Pongs are handled while reading; the echo behind the ping ends the reading.
	if err := c.Send(ctx, suite.Message{Text: true, Data: []byte("after")}); err != nil {
		return err
	}
	if _, err := c.Receive(ctx); err != nil {
		return err
	}
	if seen != "beat" {
		return errors.New("no pong in front of the echo")
	}
	return nil
}

func (c *conn) Close(_ context.Context, code int, reason string) (int, error) {
	defer c.inner.Close()
	frame := websocket.FormatCloseMessage(code, reason)
	if err := c.inner.WriteControl(websocket.CloseMessage, frame, time.Now().Add(suite.Limit)); err != nil {
		return 0, err
	}
	// Messages in flight arrive first.
	for {
		if _, _, err := c.inner.ReadMessage(); err != nil {
			if answer := closeCode(err); answer != 0 {
				return answer, nil
			}
			return 0, err
		}
	}
}
