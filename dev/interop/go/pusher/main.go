// The package pusher-http-go, unmodified, against the server: pusher BASE LIMITED
//
// The app is that of dev/interop/pusher/sinews.toml. The variable SINEWS is the path of the program: the check of
// webhooks starts a server of its own.
package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	pusher "github.com/pusher/pusher-http-go/v5"
	"golang.org/x/crypto/nacl/secretbox"

	"sinews/interop/suite"
)

const (
	key    = "278d425bdf160c739803"
	secret = "7ad3773142a6692b25b8"
)

// A run has the address of a server and the library that calls it.
type run struct {
	host   string
	server *pusher.Client
}

func main() {
	if len(os.Args) != 3 {
		fmt.Println("usage: BASE LIMITED")
		os.Exit(2)
	}
	r, err := newRun(strings.TrimPrefix(os.Args[1], "ws://"))
	if err != nil {
		fmt.Println("FAIL the library accepts the server's URL:", err)
		os.Exit(1)
	}
	suite.RunChecks([]suite.Check{
		{Name: "trigger: data of every kind", Run: r.trigger},
		{Name: "trigger: several channels, attributes", Run: r.triggerMulti},
		{Name: "trigger: an event excludes a socket", Run: r.exclude},
		{Name: "trigger: many at once", Run: r.concurrent},
		{Name: "batch: order, attributes, an excluded socket", Run: r.batch},
		{Name: "private channel: authorization, client events, refusal", Run: r.private},
		{Name: "presence channel: authorization, added, removed, users", Run: r.presence},
		{Name: "encrypted channel: trigger and batch", Run: r.encrypted},
		{Name: "channels and their attributes", Run: r.channels},
		{Name: "user: authentication, event", Run: r.user},
		{Name: "faults: signature, app, data over the limit", Run: r.faults},
		{Name: "webhooks: the library verifies and reads them", Run: webhooks},
	})
}

// newRun configures the library with one URL, as an application does.
func newRun(host string) (run, error) {
	server, err := pusher.ClientFromURL(fmt.Sprintf("http://%s:%s@%s/apps/3", key, secret, host))
	if err != nil {
		return run{}, err
	}
	server.EncryptionMasterKeyBase64 = base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	return run{host, server}, nil
}

// subscriber connects a client and subscribes it to public channels.
func (r run) subscriber(ctx context.Context, channels ...string) (*client, error) {
	c, err := connect(ctx, r.host)
	if err != nil {
		return nil, err
	}
	for _, channel := range channels {
		if _, err := c.subscribe(r.server, channel, nil); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (r run) trigger(ctx context.Context) error {
	c, err := r.subscriber(ctx, "go-public")
	if err != nil {
		return err
	}
	for _, data := range []any{map[string]any{"text": "ü€😀", "list": []any{1, nil}}, "text", 7, []string{}, nil} {
		wanted, isText := data.(string)
		if !isText {
			encoded, _ := json.Marshal(data)
			wanted = string(encoded)
		}
		err := r.server.Trigger("go-public", "news", data)
		if err := errors.Join(err, c.expect("go-public", "news", wanted)); err != nil {
			return err
		}
	}
	return nil
}

func (r run) triggerMulti(ctx context.Context) error {
	c, err := r.subscriber(ctx, "go-one", "go-two")
	if err != nil {
		return err
	}
	if err := r.server.TriggerMulti([]string{"go-one", "go-two", "go-empty"}, "news", "a"); err != nil {
		return err
	}
	if err := c.expectEach("news", "a", "go-one", "go-two"); err != nil {
		return err
	}
	info := "subscription_count"
	answer, err := r.server.TriggerMultiWithParams([]string{"go-one", "go-empty"}, "news", "b", pusher.TriggerParams{Info: &info})
	if err != nil {
		return err
	}
	counts := []int{number(answer.Channels["go-one"].SubscriptionCount), number(answer.Channels["go-empty"].SubscriptionCount)}
	return errors.Join(equal(fmt.Sprint(counts), "[1 0]", "the subscribers"), c.expect("go-one", "news", "b"))
}

// expectEach reads one event of each channel; events of different channels have no order.
func (c *client) expectEach(event, data string, channels ...string) error {
	missing := map[string]bool{}
	for _, channel := range channels {
		missing[channel] = true
	}
	for range channels {
		m, err := c.next(event)
		if err != nil {
			return err
		}
		if !missing[m.Channel] {
			return fmt.Errorf("event of %q, not of %v", m.Channel, missing)
		}
		delete(missing, m.Channel)
		if err := equal(m.text(), data, "the data"); err != nil {
			return err
		}
	}
	return nil
}

func (r run) exclude(ctx context.Context) error {
	one, err := r.subscriber(ctx, "go-excluded")
	if err != nil {
		return err
	}
	two, err := r.subscriber(ctx, "go-excluded")
	if err != nil {
		return err
	}
	_, err = r.server.TriggerWithParams("go-excluded", "news", "a", pusher.TriggerParams{SocketID: &one.socketID})
	// The first client receives nothing before the second event.
	return errors.Join(err, r.server.Trigger("go-excluded", "done", "b"), one.expect("go-excluded", "done", "b"),
		two.expect("go-excluded", "news", "a"), two.expect("go-excluded", "done", "b"))
}

func (r run) concurrent(ctx context.Context) error {
	const calls = 100
	c, err := r.subscriber(ctx, "go-concurrent")
	if err != nil {
		return err
	}
	results := make(chan error, calls)
	for i := range calls {
		go func() { results <- r.server.Trigger("go-concurrent", "news", fmt.Sprint(i)) }()
	}
	received := map[string]bool{}
	for range calls {
		if err := <-results; err != nil {
			return err
		}
		m, err := c.next("news")
		if err != nil {
			return err
		}
		received[m.text()] = true
	}
	return equal(len(received), calls, "the number of events")
}

func (r run) batch(ctx context.Context) error {
	c, err := r.subscriber(ctx, "go-batch")
	if err != nil {
		return err
	}
	other, err := r.subscriber(ctx, "go-batch")
	if err != nil {
		return err
	}
	info := "subscription_count"
	answer, err := r.server.TriggerBatch([]pusher.Event{
		{Channel: "go-batch", Name: "news", Data: "1", SocketID: &other.socketID, Info: &info},
		{Channel: "go-empty", Name: "news", Data: "2"},
		{Channel: "go-batch", Name: "news", Data: map[string]int{"n": 3}, Info: &info},
	})
	if err != nil {
		return err
	}
	var counts []int
	for _, event := range answer.Batch {
		counts = append(counts, number(event.SubscriptionCount))
	}
	return errors.Join(equal(fmt.Sprint(counts), "[2 -1 2]", "the subscribers"), c.expect("go-batch", "news", "1"),
		c.expect("go-batch", "news", `{"n":3}`), other.expect("go-batch", "news", `{"n":3}`))
}

func (r run) private(ctx context.Context) error {
	one, err := r.subscriber(ctx, "private-go")
	if err != nil {
		return err
	}
	two, err := r.subscriber(ctx, "private-go")
	if err != nil {
		return err
	}
	if err := one.send("client-typing", "private-go", map[string]bool{"on": true}); err != nil {
		return err
	}
	if err := two.expect("private-go", "client-typing", `{"on":true}`); err != nil {
		return err
	}
	stranger, err := r.subscriber(ctx)
	if err != nil {
		return err
	}
	wrong := pusher.Client{AppID: "3", Key: key, Secret: "wrong", Host: r.host}
	if _, err := stranger.subscribe(&wrong, "private-go", nil); err == nil || !strings.Contains(err.Error(), "pusher:subscription_error") {
		return fmt.Errorf("the answer to a wrong signature is %v", err)
	}
	return errors.Join(r.server.Trigger("private-go", "news", "a"), one.expect("private-go", "news", "a"))
}

func (r run) presence(ctx context.Context) error {
	member := func(id string) *pusher.MemberData {
		return &pusher.MemberData{UserID: id, UserInfo: map[string]string{"name": "name of " + id}}
	}
	one, err := connect(ctx, r.host)
	if err != nil {
		return err
	}
	two, err := connect(ctx, r.host)
	if err != nil {
		return err
	}
	if _, err := one.subscribe(r.server, "presence-go", member("1")); err != nil {
		return err
	}
	if _, err := two.subscribe(r.server, "presence-go", member("2")); err != nil {
		return err
	}
	added, err := one.next("pusher_internal:member_added")
	if err != nil {
		return err
	}
	var data pusher.MemberData
	if err := json.Unmarshal([]byte(added.text()), &data); err != nil {
		return err
	}
	users, err := r.server.GetChannelUsers("presence-go")
	if err != nil {
		return err
	}
	if len(users.List) == 2 && users.List[0].ID == "2" {
		users.List[0], users.List[1] = users.List[1], users.List[0]
	}
	if err := errors.Join(equal(data.UserInfo["name"], "name of 2", "the name"),
		equal(fmt.Sprint(users.List), "[{1} {2}]", "the users")); err != nil {
		return err
	}
	if err := two.send("client-typing", "presence-go", "on"); err != nil {
		return err
	}
	typing, err := one.next("client-typing")
	if err := errors.Join(err, equal(typing.UserID, "2", "the sender")); err != nil {
		return err
	}
	two.conn.Close()
	removed, err := one.next("pusher_internal:member_removed")
	return errors.Join(err, equal(removed.text(), `{"user_id":"2"}`, "the removed member"))
}

func (r run) encrypted(ctx context.Context) error {
	const channel = "private-encrypted-go"
	c, err := connect(ctx, r.host)
	if err != nil {
		return err
	}
	shared, err := c.subscribe(r.server, channel, nil)
	if err != nil {
		return err
	}
	_, batch := r.server.TriggerBatch([]pusher.Event{{Channel: channel, Name: "secret", Data: "second"}})
	if err := errors.Join(r.server.Trigger(channel, "secret", "first"), batch); err != nil {
		return err
	}
	// The two requests may be served by different threads.
	received := map[string]bool{}
	for range 2 {
		m, err := c.next("secret")
		if err != nil {
			return err
		}
		text, err := decrypt(shared, m.text())
		if err != nil {
			return err
		}
		received[text] = true
	}
	return equal(received["first"] && received["second"], true, fmt.Sprintf("the decrypted data %v", received))
}

// decrypt opens the box of an event with the secret that the library gives to clients.
func decrypt(shared, data string) (string, error) {
	var box struct{ Nonce, Ciphertext []byte }
	secret, err := base64.StdEncoding.DecodeString(shared)
	if err := errors.Join(err, json.Unmarshal([]byte(data), &box)); err != nil {
		return "", err
	}
	if len(secret) != 32 || len(box.Nonce) != 24 {
		return "", fmt.Errorf("a secret of %d bytes, a nonce of %d", len(secret), len(box.Nonce))
	}
	opened, ok := secretbox.Open(nil, box.Ciphertext, (*[24]byte)(box.Nonce), (*[32]byte)(secret))
	if !ok {
		return "", errors.New("the data cannot be decrypted")
	}
	return string(opened), nil
}

func (r run) channels(ctx context.Context) error {
	c, err := r.subscriber(ctx, "go-listed")
	if err != nil {
		return err
	}
	if _, err := c.subscribe(r.server, "presence-golist", &pusher.MemberData{UserID: "7"}); err != nil {
		return err
	}
	prefix, users, subscribers := "presence-golist", "user_count", "subscription_count"
	list, err := r.server.Channels(pusher.ChannelsParams{FilterByPrefix: &prefix, Info: &users})
	if err != nil {
		return err
	}
	all, err := r.server.Channels(pusher.ChannelsParams{})
	if err != nil {
		return err
	}
	_, listed := all.Channels["go-listed"]
	presence, err := r.server.Channel("presence-golist", pusher.ChannelParams{Info: &users})
	if err != nil {
		return err
	}
	public, err := r.server.Channel("go-listed", pusher.ChannelParams{Info: &subscribers})
	if err != nil {
		return err
	}
	empty, err := r.server.Channel("go-empty", pusher.ChannelParams{})
	if err != nil {
		return err
	}
	return errors.Join(
		equal(fmt.Sprint(list.Channels), "map[presence-golist:{1}]", "the presence channels"),
		equal(listed, true, "the public channel in the list"),
		equal(*presence, pusher.Channel{Name: "presence-golist", Occupied: true, UserCount: 1}, "the presence channel"),
		equal(*public, pusher.Channel{Name: "go-listed", Occupied: true, SubscriptionCount: 1}, "the public channel"),
		equal(*empty, pusher.Channel{Name: "go-empty"}, "the channel without subscribers"),
	)
}

func (r run) user(ctx context.Context) error {
	c, err := connect(ctx, r.host)
	if err != nil {
		return err
	}
	request := []byte(url.Values{"socket_id": {c.socketID}}.Encode())
	answer, err := r.server.AuthenticateUser(request, map[string]any{"id": "go user", "user_info": map[string]string{"name": "ü"}})
	if err != nil {
		return err
	}
	if err := c.send("pusher:signin", "", json.RawMessage(answer)); err != nil {
		return err
	}
	if _, err := c.next("pusher:signin_success"); err != nil {
		return err
	}
	if _, err := c.subscribe(r.server, "#server-to-user-go user", nil); err != nil {
		return err
	}
	return errors.Join(r.server.SendToUser("go user", "news", "a"), c.expect("#server-to-user-go user", "news", "a"))
}

func (r run) faults(context.Context) error {
	wrong := pusher.Client{AppID: "3", Key: key, Secret: "wrong", Host: r.host}
	unknown := pusher.Client{AppID: "unknown", Key: "unknown", Secret: secret, Host: r.host}
	large := *r.server
	// Without its own limit the library sends the data, and the server has to reject it.
	large.OverrideMaxMessagePayloadKB = 1000
	text := strings.Repeat("a", 11_000)
	_, batch := large.TriggerBatch([]pusher.Event{{Channel: "go-large", Name: "news", Data: text}})
	attribute := "user_count"
	_, channel := r.server.Channel("go-large", pusher.ChannelParams{Info: &attribute})
	_, users := r.server.GetChannelUsers("go-large")
	return errors.Join(
		rejected(wrong.Trigger("go-large", "news", ""), 401, "a wrong secret"),
		rejected(unknown.Trigger("go-large", "news", ""), 404, "an unknown app"),
		rejected(large.Trigger("go-large", "news", text), 413, "data over the limit"),
		rejected(batch, 413, "data over the limit in a batch"),
		rejected(channel, 400, "an attribute that the channel does not have"),
		rejected(users, 400, "users of a channel without presence"),
	)
}

func rejected(err error, status int, what string) error {
	if err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("Status Code: %d ", status)) {
		return fmt.Errorf("the answer to %s is %v, not %d", what, err, status)
	}
	return nil
}

func isSigned(channel string) bool {
	return strings.HasPrefix(channel, "private-") || strings.HasPrefix(channel, "presence-")
}

// number returns -1 for an attribute that the answer does not have.
func number(count *int) int {
	if count == nil {
		return -1
	}
	return *count
}

func equal[T comparable](actual, wanted T, what string) error {
	if actual != wanted {
		return fmt.Errorf("%s: %v, not %v", what, actual, wanted)
	}
	return nil
}
