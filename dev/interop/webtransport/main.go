// Sessions of WebTransport with webtransport-go, against `sinews serve`: webtransport HOST:PORT
//
// Version 0.10 is the last one that does not require RESET_STREAM_AT of the server. Prints `ok NAME` or `FAIL NAME: why` for
// each check.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/webtransport-go"
)

const limit = 60 * time.Second

const (
	text    = 1
	octets  = 2
	closing = 8
)

// A session, and the stream of its messages.
type session struct {
	*webtransport.Session
	stream *webtransport.Stream
}

func open(ctx context.Context, address, path string) (*session, error) {
	dialer := webtransport.Dialer{TLSClientConfig: &tls.Config{
		InsecureSkipVerify: true,
		NextProtos:         []string{http3.NextProtoH3},
	}}
	_, opened, err := dialer.Dial(ctx, "https://"+address+path, http.Header{})
	if err != nil {
		return nil, err
	}
	stream, err := opened.AcceptStream(ctx)
	if err != nil {
		return nil, err
	}
	return &session{opened, stream}, nil
}

func (s *session) send(kind byte, payload []byte) error {
	head := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	_, err := s.stream.Write(append(head, payload...))
	return err
}

func (s *session) next() (byte, []byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(s.stream, head); err != nil {
		return 0, nil, err
	}
	payload := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(s.stream, payload)
	return head[0], payload, err
}

func (s *session) expect(kind byte, payload []byte) error {
	seen, got, err := s.next()
	if err == nil && (seen != kind || !bytes.Equal(got, payload)) {
		err = fmt.Errorf("kind %d, %d bytes", seen, len(got))
	}
	return err
}

func messages(ctx context.Context, address string) error {
	echo, err := open(ctx, address, "/echo")
	if err != nil {
		return err
	}
	for _, size := range []int{0, 1, 1000, 300_000} {
		payload := bytes.Repeat([]byte("a"), size)
		for _, kind := range []byte{text, octets} {
			if err := echo.send(kind, payload); err != nil {
				return err
			}
			if err := echo.expect(kind, payload); err != nil {
				return err
			}
		}
	}
	if err := echo.SendDatagram([]byte("\x02datagram")); err != nil {
		return err
	}
	if err := echo.expect(octets, []byte("datagram")); err != nil {
		return err
	}
	if err := echo.send(closing, []byte{0x03, 0xe8}); err != nil {
		return err
	}
	if err := echo.expect(closing, []byte{0x03, 0xe8}); err != nil {
		return err
	}
	if err := echo.stream.Close(); err != nil {
		return err
	}
	_, err = echo.AcceptUniStream(ctx)
	var closed *webtransport.SessionError
	if !errors.As(err, &closed) || closed.ErrorCode != 1000 || !closed.Remote {
		return fmt.Errorf("the session ends with %v", err)
	}
	return nil
}

// Streams that the client opens carry messages, and end alone.
func ownStreams(ctx context.Context, address string) error {
	echo, err := open(ctx, address, "/echo")
	if err != nil {
		return err
	}
	for number := range 3 {
		stream, err := echo.OpenStreamSync(ctx)
		if err != nil {
			return err
		}
		own := &session{echo.Session, stream}
		payload := fmt.Appendf(nil, "%d", number)
		if err := own.send(text, payload); err != nil {
			return err
		}
		if err := own.expect(text, payload); err != nil {
			return err
		}
		if number > 0 {
			continue
		}
		// The server closes its unused stream.
		if kind, _, err := echo.next(); err != nil || kind != closing {
			return fmt.Errorf("the stream of the server: kind %d, %v", kind, err)
		}
		if err := echo.stream.Close(); err != nil {
			return err
		}
	}
	oneWay, err := echo.OpenUniStreamSync(ctx)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = oneWay.Write([]byte("x"))
		time.Sleep(10 * time.Millisecond)
	}
	var stopped *webtransport.StreamError
	if !errors.As(err, &stopped) || stopped.ErrorCode != 1003 {
		return fmt.Errorf("the unidirectional stream ends with %v", err)
	}
	return echo.CloseWithError(7, "bye")
}

func topics(ctx context.Context, address string) error {
	reliable, err := open(ctx, address, "/topics/go")
	if err != nil {
		return err
	}
	lossy, err := open(ctx, address, "/topics/go?datagrams=true")
	if err != nil {
		return err
	}
	for number := range 50 {
		payload := fmt.Appendf(nil, "%d", number)
		if err := reliable.send(text, payload); err != nil {
			return err
		}
		if err := reliable.expect(text, payload); err != nil {
			return err
		}
		datagram, err := lossy.ReceiveDatagram(ctx)
		if err != nil || !bytes.Equal(datagram, append([]byte{text}, payload...)) {
			return fmt.Errorf("datagram %q: %v", datagram, err)
		}
	}
	return errors.Join(reliable.CloseWithError(7, "bye"), lossy.CloseWithError(0, ""))
}

func main() {
	failed := false
	for _, check := range []struct {
		name string
		run  func(context.Context, string) error
	}{{"messages", messages}, {"streams of the client", ownStreams}, {"topics", topics}} {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		if err := check.run(ctx, os.Args[1]); err != nil {
			failed = true
			fmt.Printf("FAIL %s: %v\n", check.name, err)
		} else {
			fmt.Printf("ok %s\n", check.name)
		}
		cancel()
	}
	if failed {
		os.Exit(1)
	}
}
