package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// A peer is a session with the server under test.
type peer struct {
	address    string
	tls        *tls.Config
	connection *quic.Conn
	session    *http3.ClientConn
	transport  *http3.Transport
}

// cases are named as those of bridge/peer.js. Those from `via` on have no counterpart there.
var cases = map[string]func(*peer) error{
	"get": get, "head": head, "unmodified": unmodified, "large": large, "post": post,
	"trailers": trailers, "hints": hints, "cut": cut, "together": together, "missing": missing,
	"load": load, "fields": fields, "unread": unread, "leave": leave, "websocket": websocket,
	"via": via, "early": early, "drain": drain, "tunnel": connect, "datagrams": datagrams,
}

func ask(address, cert, name string) error {
	config, err := trust(cert)
	if err != nil {
		return err
	}
	act := cases[name]
	if act == nil {
		return fmt.Errorf("no case is called %s", name)
	}
	config.NextProtos = []string{http3.NextProtoH3}
	config.ServerName = strings.Split(address, ":")[0]
	config.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	p := &peer{address: address, tls: config}
	if err := p.connect(); err != nil {
		return err
	}
	defer func() { p.connection.CloseWithError(0, "") }()
	if err := act(p); err != nil {
		return err
	}
	switch name {
	case "drain", "tunnel", "datagrams":
		// The gateway has ended, or serves no page.
		return nil
	}
	// The session goes on.
	return get(p)
}

// connect begins a connection, with early data if there is a ticket.
func (p *peer) connect() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	connection, err := quic.DialAddrEarly(ctx, p.address, p.tls, quicConfig())
	if err != nil {
		return err
	}
	p.connection = connection
	p.transport = &http3.Transport{EnableDatagrams: true, DisableCompression: true}
	p.session = p.transport.NewClientConn(connection)
	return nil
}

// A result is a response that has ended.
type result struct {
	*http.Response
	body    string
	interim []int
}

// An exchange is a request; the zero value of each part leaves it out.
type exchange struct {
	method, path string
	fields       map[string]string
	body         io.Reader
	trailers     http.Header
}

// send returns the response once it has ended, or the error that broke it off.
func (p *peer) send(e exchange) (*result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var interim []int
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		Got1xxResponse: func(status int, _ textproto.MIMEHeader) error {
			interim = append(interim, status)
			return nil
		},
	})
	if e.method == "" {
		e.method = http.MethodGet
	}
	request, err := http.NewRequestWithContext(ctx, e.method, "https://"+p.address+e.path, e.body)
	if err != nil {
		return nil, err
	}
	for name, value := range e.fields {
		request.Header.Set(name, value)
	}
	if e.trailers != nil {
		request.Trailer, request.ContentLength = e.trailers, -1
	}
	response, err := p.session.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return &result{Response: response}, err
	}
	return &result{response, string(body), interim}, nil
}

// whole sends a request, and checks status and body of the response.
func (p *peer) whole(e exchange, status int, body string) (*result, error) {
	r, err := p.send(e)
	if err != nil {
		return nil, err
	}
	if err := same("status", r.StatusCode, status); err != nil {
		return nil, err
	}
	if r.body != body {
		return nil, fmt.Errorf("%d bytes of body, not the %d expected ones", len(r.body), len(body))
	}
	return r, nil
}

func same[T comparable](name string, found, expected T) error {
	if found != expected {
		return fmt.Errorf("%s: %v instead of %v", name, found, expected)
	}
	return nil
}

func get(p *peer) error {
	r, err := p.whole(exchange{path: "/page", fields: map[string]string{"test": "1"}}, 200, "page")
	if err != nil {
		return err
	}
	return same("field", r.Header.Get("seen-test"), "1")
}

func via(p *peer) error {
	r, err := p.whole(exchange{path: "/page"}, 200, "page")
	if err != nil {
		return err
	}
	if seen := r.Header.Get("seen-via"); !regexp.MustCompile(`^3(\.0)? tandem-`).MatchString(seen) {
		return fmt.Errorf("Via: %s", seen)
	}
	return nil
}

func head(p *peer) error {
	r, err := p.whole(exchange{method: http.MethodHead, path: "/page"}, 200, "")
	if err != nil {
		return err
	}
	return same("length", r.ContentLength, 4)
}

func unmodified(p *peer) error {
	r, err := p.whole(exchange{path: "/page", fields: map[string]string{"if-none-match": `"1"`}}, 304, "")
	if err != nil {
		return err
	}
	return same("tag", r.Header.Get("etag"), `"1"`)
}

func large(p *peer) error {
	_, err := p.whole(exchange{path: "/large"}, 200, string(mib))
	return err
}

func post(p *peer) error {
	_, err := p.whole(exchange{method: http.MethodPost, path: "/echo", body: bytes.NewReader(mib)}, 200, string(mib))
	return err
}

func trailers(p *peer) error {
	sent := http.Header{"Sent": {"also"}}
	r, err := p.whole(
		exchange{method: http.MethodPost, path: "/echo", body: strings.NewReader("abc"), trailers: sent}, 200, "abc")
	if err != nil {
		return err
	}
	if err := same("trailer", r.Trailer.Get("after"), "yes"); err != nil {
		return err
	}
	return same("trailer of the request", r.Trailer.Get("seen"), "also")
}

func hints(p *peer) error {
	r, err := p.whole(exchange{path: "/hints"}, 200, "page")
	if err != nil {
		return err
	}
	return same("interim responses", fmt.Sprint(r.interim), "[103]")
}

func cut(p *peer) error {
	r, err := p.send(exchange{path: "/cut"})
	if err == nil && r.StatusCode == 200 {
		return errors.New("a response that broke off looks whole")
	}
	return nil
}

// together sends 100 requests. The origin answers only when all of them have arrived.
func together(p *peer) error {
	return atOnce(100, func() error {
		_, err := p.whole(exchange{path: "/together"}, 200, "together")
		return err
	})
}

// atOnce runs as many calls, and returns the first error.
func atOnce(count int, call func() error) error {
	ended := make(chan error, count)
	for range count {
		go func() { ended <- call() }()
	}
	var first error
	for range count {
		if err := <-ended; first == nil {
			first = err
		}
	}
	return first
}

func missing(p *peer) error {
	_, err := p.whole(exchange{path: "/nothing"}, 404, "")
	return err
}

// unread sends a body that the origin does not read.
func unread(p *peer) error {
	_, err := p.whole(exchange{method: http.MethodPost, path: "/unread", body: bytes.NewReader(mib)}, 413, "unread")
	return err
}

// leave makes the origin send GOAWAY while other requests are under way. None of them may fail, and a new
// connection takes the next ones.
func leave(p *peer) error {
	before, err := p.whole(exchange{path: "/page"}, 200, "page")
	if err != nil {
		return err
	}
	left := make(chan error, 2)
	go func() { left <- large(p) }()
	go func() {
		_, err := p.whole(exchange{path: "/leave"}, 200, "leave")
		left <- err
	}()
	for range 5 {
		if err := atOnce(20, func() error { return get(p) }); err != nil {
			return err
		}
	}
	if err := errors.Join(<-left, <-left); err != nil {
		return err
	}
	for range 100 {
		r, err := p.whole(exchange{path: "/page"}, 200, "page")
		if err != nil {
			return err
		}
		if r.Header.Get("seen-server") != before.Header.Get("seen-server") {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the connection before the GOAWAY takes new requests")
}

// load sends 1,000 requests, 50 at once, each with a field of its own.
func load(p *peer) error {
	var sent atomic.Int64
	return atOnce(50, func() error {
		for {
			number := sent.Add(1)
			if number > 1000 {
				return nil
			}
			value := fmt.Sprint("number ", number)
			r, err := p.whole(exchange{path: "/page", fields: map[string]string{"test": value}}, 200, "page")
			if err != nil {
				return err
			}
			if err := same("field", r.Header.Get("seen-test"), value); err != nil {
				return err
			}
		}
	})
}

// fields sends and gets a field of 4,000 bytes. aioquic encodes no longer ones.
func fields(p *peer) error {
	value := string(mib[:3997]) + "end"
	r, err := p.whole(exchange{path: "/page", fields: map[string]string{"test": value}}, 200, "page")
	if err != nil {
		return err
	}
	return same("field", r.Header.Get("seen-test"), value)
}

// drain ends the gateway, whose process is $GATEWAY, within an exchange. The exchange ends well, and the
// gateway takes no other one.
func drain(p *peer) error {
	gateway, err := strconv.Atoi(os.Getenv("GATEWAY"))
	if err != nil {
		return err
	}
	body, writer := io.Pipe()
	go func() {
		writer.Write(mib[:1000])
		time.Sleep(100 * time.Millisecond)
		syscall.Kill(gateway, syscall.SIGTERM)
		time.Sleep(200 * time.Millisecond)
		writer.Write(mib[1000:])
		writer.Close()
	}()
	if _, err := p.whole(exchange{method: http.MethodPost, path: "/echo", body: body}, 200, string(mib)); err != nil {
		return err
	}
	if _, err := p.send(exchange{path: "/page"}); err == nil {
		return errors.New("the gateway answers after its GOAWAY")
	}
	select {
	case <-p.connection.Context().Done():
	case <-time.After(10 * time.Second):
		return errors.New("the connection stays open")
	}
	var end *quic.ApplicationError
	if err := context.Cause(p.connection.Context()); !errors.As(err, &end) {
		return err
	}
	return same("code", end.ErrorCode, quic.ApplicationErrorCode(http3.ErrCodeNoError))
}
