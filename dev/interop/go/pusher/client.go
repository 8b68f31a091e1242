package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/gorilla/websocket"
	pusher "github.com/pusher/pusher-http-go/v5"
)

// A message is one of the protocol; the data of most is a string.
type message struct {
	Event   string          `json:"event"`
	Channel string          `json:"channel"`
	Data    json.RawMessage `json:"data"`
	UserID  string          `json:"user_id"`
}

// text returns the data, without the quotes of a string.
func (m message) text() string {
	var text string
	if json.Unmarshal(m.Data, &text) == nil {
		return text
	}
	return string(m.Data)
}

// A client is a connection of the protocol. The library has none, so that it is a WebSocket of another library.
type client struct {
	conn     *websocket.Conn
	socketID string
}

// connect opens a connection, which ends with the context.
func connect(ctx context.Context, host string) (*client, error) {
	conn, _, err := websocket.DefaultDialer.DialContext(ctx, "ws://"+host+"/app/"+key+"?protocol=7", nil)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	c := &client{conn: conn}
	established, err := c.next("pusher:connection_established")
	if err != nil {
		return nil, err
	}
	var data struct {
		SocketID string `json:"socket_id"`
	}
	err = json.Unmarshal([]byte(established.text()), &data)
	c.socketID = data.SocketID
	return c, err
}

func (c *client) send(event, channel string, data any) error {
	fields := map[string]any{"event": event, "data": data}
	if channel != "" {
		fields["channel"] = channel
	}
	return c.conn.WriteJSON(fields)
}

// next returns the next message, which must be this event; numbers of subscribers are ignored.
func (c *client) next(event string) (message, error) {
	for {
		var m message
		if err := c.conn.ReadJSON(&m); err != nil {
			return m, fmt.Errorf("waiting for %s: %w", event, err)
		}
		switch m.Event {
		case event:
			return m, nil
		case "pusher_internal:subscription_count":
		default:
			return m, fmt.Errorf("received %s of %q with %s instead of %s", m.Event, m.Channel, m.Data, event)
		}
	}
}

// expect reads the next event of a channel, and compares its data.
func (c *client) expect(channel, event, data string) error {
	m, err := c.next(event)
	if err != nil {
		return err
	}
	return errors.Join(equal(m.Channel, channel, "the channel"), equal(m.text(), data, "the data"))
}

// subscribe sends the answer of the library to an authorization request, and returns the shared secret of an encrypted
// channel.
func (c *client) subscribe(server *pusher.Client, channel string, member *pusher.MemberData) (string, error) {
	fields, err := c.authorize(server, channel, member)
	if err != nil {
		return "", err
	}
	secret := fields["shared_secret"]
	delete(fields, "shared_secret")
	fields["channel"] = channel
	if err := c.send("pusher:subscribe", "", fields); err != nil {
		return "", err
	}
	m, err := c.next("pusher_internal:subscription_succeeded")
	return secret, errors.Join(err, equal(m.Channel, channel, "the channel"))
}

// authorize lets the library answer the request that a client's library sends to its application.
func (c *client) authorize(server *pusher.Client, channel string, member *pusher.MemberData) (map[string]string, error) {
	request := []byte(url.Values{"socket_id": {c.socketID}, "channel_name": {channel}}.Encode())
	var answer []byte
	var err error
	switch {
	case member != nil:
		answer, err = server.AuthorizePresenceChannel(request, *member)
	case isSigned(channel):
		answer, err = server.AuthorizePrivateChannel(request)
	default:
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	var fields map[string]string
	return fields, json.Unmarshal(answer, &fields)
}
