// Package suite holds the common checks of all Go clients. Each prints `ok NAME` or
// `FAIL NAME: why`.
package suite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"net/http"
	"os"
	"strings"
	"time"
)

// Limit bounds each check.
const Limit = 60 * time.Second

// A Message is text or binary.
type Message struct {
	Text bool
	Data []byte
}

// A Conn is a connected client.
type Conn interface {
	Send(ctx context.Context, message Message) error
	// SendParts sends one text message in several frames.
	SendParts(ctx context.Context, parts []string) error
	Receive(ctx context.Context) (Message, error)
	// Ping returns after the pong.
	Ping(ctx context.Context) error
	// Close performs the closing handshake and returns the server's code.
	Close(ctx context.Context, code int, reason string) (int, error)
}

// A Client is one library.
type Client struct {
	Name string
	// Dial connects, with the compression the library has; the header is the server's answer.
	Dial func(ctx context.Context, url string, deflate bool) (Conn, http.Header, error)
	// CloseCode is the code of the Close frame that ended the connection, 0 if none did.
	CloseCode func(err error) int
}

type run struct {
	client        Client
	base, limited string
}

// A Check has a name and a limit, after which its context ends.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
}

// Main runs all checks against the two servers named on the command line.
func Main(client Client) {
	if len(os.Args) != 3 {
		fmt.Println("usage: BASE LIMITED")
		os.Exit(2)
	}
	r := run{client, os.Args[1], os.Args[2]}
	RunChecks(r.checks())
}

// RunChecks runs the checks, prints a line for each, and exits with 1 if one fails.
func RunChecks(checks []Check) {
	failed := false
	for _, check := range checks {
		ctx, cancel := context.WithTimeout(context.Background(), Limit)
		err := check.Run(ctx)
		cancel()
		if err != nil {
			failed = true
			fmt.Printf("FAIL %s: %s\n", check.Name, strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok", check.Name)
		}
	}
	if failed {
		os.Exit(1)
	}
}

func (r run) checks() []Check {
	var checks []Check
	for _, size := range []int{0, 1, 125, 126, 65535, 65536, 1 << 20} {
		checks = append(checks,
			Check{fmt.Sprintf("text of %d", size), func(ctx context.Context) error {
				return r.echo(ctx, r.base, Message{true, letters(size)})
			}},
			Check{fmt.Sprintf("binary of %d", size), func(ctx context.Context) error {
				return r.echo(ctx, r.base, Message{false, octets(size)})
			}})
	}
	return append(checks,
		Check{"fragments", r.fragments},
		Check{"ping", r.ping},
		Check{"close 1000", func(ctx context.Context) error { return r.close(ctx, 1000, "") }},
		Check{"close 4001 with a reason", func(ctx context.Context) error { return r.close(ctx, 4001, "because") }},
		Check{"deflate", r.deflate},
		Check{"topic reaches all", r.topicReachesAll},
		Check{"topic without self", r.topicWithoutSelf},
		Check{"topic by POST", r.topicByPost},
		Check{"largest message", func(ctx context.Context) error {
			return r.echo(ctx, r.limited, Message{false, octets(2_000_000)})
		}},
		Check{"message over the limit", r.overLimit},
	)
}

func (r run) open(ctx context.Context, path string) (Conn, error) {
	conn, _, err := r.client.Dial(ctx, r.base+path, false)
	return conn, err
}

func (r run) echo(ctx context.Context, base string, message Message) error {
	conn, _, err := r.client.Dial(ctx, base+"/echo", false)
	if err != nil {
		return err
	}
	if err := conn.Send(ctx, message); err != nil {
		return err
	}
	return errors.Join(receive(ctx, conn, message), expectClose(ctx, conn, 1000, ""))
}

func (r run) fragments(ctx context.Context) error {
	conn, err := r.open(ctx, "/echo")
	if err != nil {
		return err
	}
	if err := conn.SendParts(ctx, []string{"one ", "two ", "three"}); err != nil {
		return err
	}
	return errors.Join(receive(ctx, conn, Message{true, []byte("one two three")}), expectClose(ctx, conn, 1000, ""))
}

func (r run) ping(ctx context.Context) error {
	conn, err := r.open(ctx, "/echo")
	if err != nil {
		return err
	}
	return errors.Join(conn.Ping(ctx), expectClose(ctx, conn, 1000, ""))
}

func (r run) close(ctx context.Context, code int, reason string) error {
	conn, err := r.open(ctx, "/echo")
	if err != nil {
		return err
	}
	return expectClose(ctx, conn, code, reason)
}

func (r run) deflate(ctx context.Context) error {
	conn, header, err := r.client.Dial(ctx, r.base+"/echo", true)
	if err != nil {
		return err
	}
	if answer := header.Get("Sec-WebSocket-Extensions"); !strings.HasPrefix(answer, "permessage-deflate") {
		return fmt.Errorf("the extensions are %q", answer)
	}
	// Twice: the second uses the window of the first, if there is one.
	for _, message := range []Message{{true, letters(100_000)}, {true, letters(100_000)}, {false, octets(70_000)}} {
		if err := conn.Send(ctx, message); err != nil {
			return err
		}
		if err := receive(ctx, conn, message); err != nil {
			return err
		}
	}
	return expectClose(ctx, conn, 1000, "")
}

// topic returns a new topic for each check: a late leave must not count in the next check.
func (r run) topic(check string) string {
	return "/topics/" + r.client.Name + "-" + check
}

func (r run) pair(ctx context.Context, path, query string) (one, two Conn, err error) {
	if one, err = r.open(ctx, path+query); err != nil {
		return nil, nil, err
	}
	two, err = r.open(ctx, path)
	return one, two, err
}

func (r run) topicReachesAll(ctx context.Context) error {
	one, two, err := r.pair(ctx, r.topic("all"), "")
	if err != nil {
		return err
	}
	news := Message{true, []byte("news")}
	return errors.Join(one.Send(ctx, news), receive(ctx, one, news), receive(ctx, two, news),
		expectClose(ctx, one, 1000, ""), expectClose(ctx, two, 1000, ""))
}

func (r run) topicWithoutSelf(ctx context.Context) error {
	quiet, other, err := r.pair(ctx, r.topic("self"), "?self=false")
	if err != nil {
		return err
	}
	first, second := Message{true, []byte("from quiet")}, Message{true, []byte("from other")}
	// An echo of the first to its sender would arrive before the second.
	return errors.Join(quiet.Send(ctx, first), receive(ctx, other, first),
		other.Send(ctx, second), receive(ctx, quiet, second),
		expectClose(ctx, quiet, 1000, ""), expectClose(ctx, other, 1000, ""))
}

func (r run) topicByPost(ctx context.Context) error {
	one, two, err := r.pair(ctx, r.topic("post"), "")
	if err != nil {
		return err
	}
	url := strings.Replace(r.base, "ws:", "http:", 1) + r.topic("post")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("posted"))
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	var body struct{ Subscribers int }
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return fmt.Errorf("status %d: %w", answer.StatusCode, err)
	}
	if answer.StatusCode != http.StatusOK || body.Subscribers != 2 {
		return fmt.Errorf("status %d, %d subscribers", answer.StatusCode, body.Subscribers)
	}
	posted := Message{true, []byte("posted")}
	return errors.Join(receive(ctx, one, posted), receive(ctx, two, posted),
		expectClose(ctx, one, 1000, ""), expectClose(ctx, two, 1000, ""))
}

func (r run) overLimit(ctx context.Context) error {
	conn, _, err := r.client.Dial(ctx, r.limited+"/echo", false)
	if err != nil {
		return err
	}
	noise := make([]byte, 2_000_001)
	rand.New(rand.NewSource(1)).Read(noise)
	sent := conn.Send(ctx, Message{false, noise})
	_, err = conn.Receive(ctx)
	if code := r.client.CloseCode(err); code != 1009 {
		return fmt.Errorf("the code is %d, not 1009 (sending: %v, receiving: %v)", code, sent, err)
	}
	return nil
}

func receive(ctx context.Context, conn Conn, wanted Message) error {
	message, err := conn.Receive(ctx)
	if err != nil {
		return err
	}
	if message.Text != wanted.Text || !bytes.Equal(message.Data, wanted.Data) {
		return fmt.Errorf("received %d octets (text: %t), not the %d (text: %t) wanted",
			len(message.Data), message.Text, len(wanted.Data), wanted.Text)
	}
	return nil
}

func expectClose(ctx context.Context, conn Conn, code int, reason string) error {
	answer, err := conn.Close(ctx, code, reason)
	if err != nil {
		return err
	}
	if answer != code {
		return fmt.Errorf("the code is %d, not %d", answer, code)
	}
	return nil
}

func letters(size int) []byte {
	pattern := []byte("abcdefghijklmnopqrstuvwxyz 0123456789 ")
	return bytes.Repeat(pattern, size/len(pattern)+1)[:size]
}

func octets(size int) []byte {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i*31 + i>>8)
	}
	return data
}
