// Package wire has WebSockets on streams of HTTP/2 and HTTP/3, and the checks of them that both clients share.
package wire

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
)

const (
	text  = 0x81
	close = 0x88
)

// Sockets on the same connection in a check.
const sockets = 8

// A Socket is a WebSocket on a stream, without compression.
type Socket struct {
	stream io.WriteCloser
	reader *bufio.Reader
}

// NewSocket returns the WebSocket whose frames are written to a stream, and read from another.
func NewSocket(stream io.WriteCloser, reader io.Reader) *Socket {
	return &Socket{stream, bufio.NewReader(reader)}
}

func (ws *Socket) send(first byte, payload []byte) error {
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

func (ws *Socket) receive() (byte, []byte, error) {
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

func (ws *Socket) echo(message []byte) error {
	// Both directions at a time: a long message exceeds the windows.
	sent := make(chan error, 1)
	go func() { sent <- ws.send(text, message) }()
	first, payload, err := ws.receive()
	if err == nil && (first != text || !bytes.Equal(payload, message)) {
		err = fmt.Errorf("%d octets of %#x in place of %d", len(payload), first, len(message))
	}
	return errors.Join(err, <-sent)
}

func (ws *Socket) end() error {
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

// Abandon closes the stream without the closing handshake.
func (ws *Socket) Abandon() { ws.stream.Close() }

// Echo opens sockets, sends a short and a long message on each, and closes them.
func Echo(open func() (*Socket, error)) error {
	var all []*Socket
	for range sockets {
		ws, err := open()
		if err != nil {
			return err
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

// Trust returns a configuration of TLS that trusts the certificate of a file.
func Trust(path string, protocols ...string) *tls.Config {
	certificate, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return &tls.Config{RootCAs: roots, NextProtos: protocols}
}
