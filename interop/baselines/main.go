// A pair of proxies over plain quic-go, as a baseline of experiments/baselines.toml. The package
// ends tells how the lab starts it.
//
//	go build -o DIRECTORY/tandem-baselines .
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"time"

	"github.com/quic-go/quic-go"

	"tandem/baselines/ends"
)

// The application protocol of the pair over quic-go.
const protocol = "tandem-baseline"

// The limit of the target that precedes a stream's data.
const longestTarget = 256

func main() {
	log.SetFlags(0)
	var err error
	switch role := strings.Join(os.Args[1:], " "); role {
	case "near":
		err = ends.Near(connect)
	case "far":
		err = ends.Far(serve)
	default:
		err = errors.New("usage: tandem-baselines near|far")
	}
	log.Fatal(err)
}

// splice copies both directions, and ends when one of them has ended.
func splice(a, b io.ReadWriteCloser) {
	ended := make(chan struct{}, 2)
	pass := func(to io.Writer, from io.Reader) {
		// The reason for the end does not matter.
		_, _ = io.Copy(to, from)
		ended <- struct{}{}
	}
	go pass(a, b)
	go pass(b, a)
	<-ended
	a.Close()
	b.Close()
}

// streamConn is a stream of quic-go as a connection.
type streamConn struct {
	*quic.Stream
	connection *quic.Conn
}

func (s streamConn) LocalAddr() net.Addr  { return s.connection.LocalAddr() }
func (s streamConn) RemoteAddr() net.Addr { return s.connection.RemoteAddr() }

func (s streamConn) Close() error {
	s.CancelRead(0)
	return s.Stream.Close()
}

func quicConfig() *quic.Config {
	return &quic.Config{
		MaxStreamReceiveWindow:     8 << 20,
		MaxConnectionReceiveWindow: 20 << 20,
		MaxIncomingStreams:         1024,
	}
}

// connect returns the dialler of a new connection to the other end.
func connect() (ends.Dialler, error) {
	pool, err := ends.Authorities()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: pool, ServerName: ends.ServerName(), NextProtos: []string{protocol}}
	address := os.Getenv("GATEWAY")
	connection, err := quic.DialAddr(context.Background(), address, config, quicConfig())
	if err != nil {
		return nil, err
	}
	return func(target string) (net.Conn, error) {
		stream, err := connection.OpenStreamSync(context.Background())
		if err != nil {
			return nil, err
		}
		if _, err := fmt.Fprintf(stream, "%s\n", target); err != nil {
			return nil, err
		}
		return streamConn{stream, connection}, nil
	}, nil
}

// serve accepts connections, and their streams.
func serve(socket net.PacketConn, certificate tls.Certificate) error {
	config := &tls.Config{
		Certificates: []tls.Certificate{certificate},
		NextProtos:   []string{protocol},
	}
	listener, err := quic.Listen(socket, config, quicConfig())
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept(context.Background())
		if err != nil {
			return err
		}
		go func() {
			for {
				stream, err := connection.AcceptStream(context.Background())
				if err != nil {
					return
				}
				go serveStream(streamConn{stream, connection})
			}
		}()
	}
}

// serveStream reads the target in the first line of a stream, and connects to it.
func serveStream(stream streamConn) {
	reader := bufio.NewReaderSize(stream, longestTarget)
	line, err := reader.ReadSlice('\n')
	if err != nil {
		stream.Close()
		return
	}
	origin, err := net.DialTimeout("tcp", strings.TrimSpace(string(line)), 10*time.Second)
	if err != nil {
		stream.Close()
		return
	}
	splice(struct {
		io.Reader
		io.WriteCloser
	}{reader, stream}, origin)
}
