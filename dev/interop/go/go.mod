module sinews/interop

go 1.23.0

require (
	github.com/armon/go-socks5 v0.0.0-20160902184237-e75332964ef5
	github.com/coder/websocket v1.8.15
	github.com/gorilla/websocket v1.5.3
	github.com/pusher/pusher-http-go/v5 v5.1.1
	github.com/quic-go/quic-go v0.54.1
	github.com/summerwind/h2spec v2.2.1+incompatible
	golang.org/x/crypto v0.36.0
	golang.org/x/net v0.38.0
)

require (
	github.com/fatih/color v1.18.0 // indirect
	github.com/mattn/go-colorable v0.1.13 // indirect
	github.com/mattn/go-isatty v0.0.20 // indirect
	github.com/quic-go/qpack v0.5.1 // indirect
	go.uber.org/mock v0.5.0 // indirect
	golang.org/x/mod v0.18.0 // indirect
	golang.org/x/sync v0.12.0 // indirect
	golang.org/x/sys v0.31.0 // indirect
	golang.org/x/text v0.23.0 // indirect
	golang.org/x/tools v0.22.0 // indirect
)
