package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	pusher "github.com/pusher/pusher-http-go/v5"
)

// A request of a webhook, as received.
type request struct {
	header http.Header
	body   []byte
}

// webhooks starts a server that sends webhooks to this program, and lets the library verify and read them.
func webhooks(ctx context.Context) error {
	requests := make(chan request, 100)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- request{r.Header, body}
	}))
	defer receiver.Close()
	host, stop, err := startServer(ctx, receiver.URL)
	if err != nil {
		return err
	}
	defer stop()
	r, err := newRun(host)
	if err != nil {
		return err
	}
	c, err := connect(ctx, host)
	if err != nil {
		return err
	}
	if _, err := c.subscribe(r.server, "presence-hook", &pusher.MemberData{UserID: "1"}); err != nil {
		return err
	}
	if err := c.send("client-typing", "presence-hook", map[string]bool{"on": true}); err != nil {
		return err
	}
	err = r.receive(ctx, requests, map[string]pusher.WebhookEvent{
		"channel_occupied": {},
		"member_added":     {UserID: "1"},
		"client_event":     {UserID: "1", Event: "client-typing", Data: `{"on":true}`, SocketID: c.socketID},
	})
	if err != nil {
		return err
	}
	if err := c.send("pusher:unsubscribe", "", map[string]string{"channel": "presence-hook"}); err != nil {
		return err
	}
	return r.receive(ctx, requests, map[string]pusher.WebhookEvent{
		"member_removed":  {UserID: "1"},
		"channel_vacated": {},
	})
}

// receive reads webhooks until each expected event has come once.
func (r run) receive(ctx context.Context, requests <-chan request, expected map[string]pusher.WebhookEvent) error {
	for len(expected) > 0 {
		var received request
		select {
		case received = <-requests:
		case <-ctx.Done():
			return fmt.Errorf("webhooks without %v", expected)
		}
		webhook, err := r.server.Webhook(received.header, received.body)
		if err != nil {
			return fmt.Errorf("%w: %s", err, received.body)
		}
		if age := time.Since(time.UnixMilli(int64(webhook.TimeMs))); age < -time.Minute || age > time.Minute {
			return fmt.Errorf("the time of a webhook is off by %v", age)
		}
		for _, event := range webhook.Events {
			wanted, ok := expected[event.Name]
			wanted.Name, wanted.Channel = event.Name, "presence-hook"
			if !ok || event != wanted {
				return fmt.Errorf("the event is %+v, not %+v", event, wanted)
			}
			delete(expected, event.Name)
		}
		received.body[len(received.body)-1] ^= 1
		if _, err := r.server.Webhook(received.header, received.body); err == nil {
			return errors.New("the library accepts a webhook with another body: the check is void")
		}
	}
	return nil
}

var listening = regexp.MustCompile(`http://(127\.0\.0\.1:\d+)/`)

// startServer starts a server whose app has a webhook. It ends with the context, or with the returned function.
func startServer(ctx context.Context, webhook string) (string, func(), error) {
	dir, err := os.MkdirTemp("", "sinews-webhooks-")
	if err != nil {
		return "", nil, err
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "sinews.toml")
	app := fmt.Sprintf(`[[pusher.app]]
id = "3"
key = %q
secret = %q
client_events = true
webhooks = [%q]
webhook_grace = "0s"
webhook_private = true
`, key, secret, webhook)
	if err := os.WriteFile(config, []byte(app), 0o600); err != nil {
		return "", nil, err
	}
	command := exec.CommandContext(ctx, os.Getenv("SINEWS"), "serve", "--listen", "127.0.0.1:0", "--threads", "1", "--config", config)
	command.Env = serverEnvironment()
	command.Stderr = os.Stderr
	output, err := command.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := command.Start(); err != nil {
		return "", nil, fmt.Errorf("the program of the variable SINEWS: %w", err)
	}
	stop := func() {
		command.Process.Kill()
		command.Wait()
	}
	host := ""
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if found := listening.FindStringSubmatch(lines.Text()); found != nil {
			host = found[1]
		}
		if strings.Contains(lines.Text(), "Ctrl-C stops.") {
			break
		}
	}
	if host == "" {
		stop()
		return "", nil, errors.New("the server did not start")
	}
	return host, stop, nil
}

// serverEnvironment has no settings of a server except for the backend.
func serverEnvironment() []string {
	var kept []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "SINEWS") || strings.HasPrefix(variable, "SINEWS_BACKEND=") {
			kept = append(kept, variable)
		}
	}
	return kept
}
