// Command socks5 is a SOCKS5 proxy by armon/go-socks5: socks5 [USER PASSWORD]. It prints `listening on ADDRESS`.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"github.com/armon/go-socks5"
)

func main() {
	// A client that closes its connection is not an error.
	config := &socks5.Config{Logger: log.New(io.Discard, "", 0)}
	if len(os.Args) == 3 {
		config.Credentials = socks5.StaticCredentials{os.Args[1]: os.Args[2]}
	}
	server, err := socks5.New(config)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("listening on", listener.Addr())
	log.Fatal(server.Serve(listener))
}
