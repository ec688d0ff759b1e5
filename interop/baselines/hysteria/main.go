// A pair of proxies over hysteria's core library, as a baseline of experiments/baselines.toml. The
// package ends tells how the lab starts it.
//
//	near:           the library's defaults. A connection begins with a response of the other end.
//	near fast-open: data leaves before that response.
//	far:            the library's defaults. No bandwidth is given, so that both ends use BBR.
//
//	go build -o DIRECTORY/tandem-baseline-hysteria .
package main

import (
	"crypto/tls"
	"errors"
	"log"
	"net"
	"os"
	"strings"

	"github.com/apernet/hysteria/core/v2/client"
	"github.com/apernet/hysteria/core/v2/server"

	"tandem/baselines/ends"
)

// The password of the pair.
const password = "tandem-baseline"

func main() {
	log.SetFlags(0)
	var err error
	switch role := strings.Join(os.Args[1:], " "); role {
	case "near":
		err = ends.Near(func() (ends.Dialler, error) { return connect(false) })
	case "near fast-open":
		err = ends.Near(func() (ends.Dialler, error) { return connect(true) })
	case "far":
		err = ends.Far(serve)
	default:
		err = errors.New("usage: tandem-baseline-hysteria near|near fast-open|far")
	}
	log.Fatal(err)
}

// connect returns the dialler of a new connection to the other end.
func connect(fastOpen bool) (ends.Dialler, error) {
	authorities, err := ends.Authorities()
	if err != nil {
		return nil, err
	}
	address, err := net.ResolveUDPAddr("udp", os.Getenv("GATEWAY"))
	if err != nil {
		return nil, err
	}
	connection, _, err := client.NewClient(&client.Config{
		ServerAddr: address,
		Auth:       password,
		TLSConfig:  client.TLSConfig{ServerName: ends.ServerName(), RootCAs: authorities},
		FastOpen:   fastOpen,
	})
	if err != nil {
		return nil, err
	}
	return connection.TCP, nil
}

// An authenticator admits clients with the password of the pair.
type authenticator struct{}

func (authenticator) Authenticate(_ net.Addr, given string, _ uint64) (bool, string) {
	return given == password, "near"
}

// serve accepts connections, and their streams.
func serve(socket net.PacketConn, certificate tls.Certificate) error {
	other, err := server.NewServer(&server.Config{
		TLSConfig:     server.TLSConfig{Certificates: []tls.Certificate{certificate}},
		Conn:          socket,
		Authenticator: authenticator{},
	})
	if err != nil {
		return err
	}
	return other.Serve()
}
