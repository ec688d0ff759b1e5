// A pair of proxies over plain quic-go, as a baseline of experiments/baselines.toml. It stands in for
// hysteria's core library too: the quic-go that the library requires could not be fetched.
//
//	near: an HTTP proxy on $PROXY. Each connection to an origin is a stream to the other end.
//	far:  the other end on $GATEWAY (UDP). It listens on $READY (TCP) once it is up.
//
// The certificate is in the PEM files $CERT and $KEY.
//
//	go build -o DIRECTORY/tandem-baselines .
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
)

// The application protocol of the pair over quic-go.
const protocol = "tandem-baseline"

// The limit of the target that precedes a stream's data.
const longestTarget = 256

// A dialler returns a connection to an origin through the other end.
type dialler func(target string) (net.Conn, error)

func main() {
	log.SetFlags(0)
	var err error
	switch role := strings.Join(os.Args[1:], " "); role {
	case "near":
		err = near(connect)
	case "far":
		err = far(serve)
	default:
		err = errors.New("usage: tandem-baselines near|far")
	}
	log.Fatal(err)
}

// near serves the HTTP proxy. The connection to the other end begins with the first request.
func near(connect func() (dialler, error)) error {
	var lock sync.Mutex
	var dial dialler
	transport := &http.Transport{
		DialContext: func(_ context.Context, _, target string) (net.Conn, error) {
			lock.Lock()
			defer lock.Unlock()
			if dial == nil {
				connected, err := connect()
				if err != nil {
					return nil, err
				}
				dial = connected
			}
			return dial(target)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
	}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		Rewrite:       func(*httputil.ProxyRequest) {},
		FlushInterval: -1,
	}
	return http.ListenAndServe(os.Getenv("PROXY"), proxy)
}

// far serves the other end, and accepts connections over TCP once it is up.
func far(serve func(net.PacketConn, tls.Certificate) error) error {
	certificate, err := tls.LoadX509KeyPair(os.Getenv("CERT"), os.Getenv("KEY"))
	if err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", os.Getenv("GATEWAY"))
	if err != nil {
		return err
	}
	ready, err := net.Listen("tcp", os.Getenv("READY"))
	if err != nil {
		return err
	}
	defer ready.Close()
	return serve(socket, certificate)
}

// authorities returns the certificate of the other end as the only one to trust.
func authorities() (*x509.CertPool, error) {
	text, err := os.ReadFile(os.Getenv("CERT"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("no certificate in $CERT")
	}
	return pool, nil
}

func serverName() string {
	host, _, _ := net.SplitHostPort(os.Getenv("GATEWAY"))
	return host
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
func connect() (dialler, error) {
	pool, err := authorities()
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: pool, ServerName: serverName(), NextProtos: []string{protocol}}
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
