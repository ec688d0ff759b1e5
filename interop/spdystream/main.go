// One end of a SPDY/3.1 session by moby/spdystream: the same server and cases as crates/spdy/examples/peer.rs, and a
// few more for proxies at the other end. Two cases, settings and priorities, speak through its framer alone, since its
// connections know neither.
//
// Over plain TCP; with files named by CERT and KEY (serving) or CA (asking) in the environment, over TLS with ALPN.
//
//	spdystream serve                      prints its address, serves until killed
//	spdystream serve-frames               the same with the framer alone, with a small window
//	spdystream client 127.0.0.1:1 CASE    exits with 0 when the case holds
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/moby/spdystream"
	"github.com/moby/spdystream/spdy"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "serve":
		err = listen(serveSession)
	case len(args) == 1 && args[0] == "serve-frames":
		err = listen(serveFrames)
	case len(args) == 3 && args[0] == "client":
		err = client(args[1], args[2])
	default:
		err = errors.New("usage: spdystream serve | serve-frames | client ADDRESS CASE")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func pattern(from, length int) []byte {
	body := make([]byte, length)
	for at := range body {
		body[at] = byte((from + at) % 251)
	}
	return body
}

func fits(from int, data []byte) bool {
	return bytes.Equal(data, pattern(from, len(data)))
}

func listen(serve func(net.Conn)) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	settings, err := serverTLS()
	if err != nil {
		return err
	}
	for {
		socket, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if settings != nil {
				secure := tls.Server(socket, settings)
				if err := negotiate(secure); err != nil {
					fmt.Fprintln(os.Stderr, err)
					_ = socket.Close()
					return
				}
				socket = secure
			}
			serve(socket)
		}()
	}
}

const protocol = "spdy/3.1"

func serverTLS() (*tls.Config, error) {
	if os.Getenv("CERT") == "" {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(os.Getenv("CERT"), os.Getenv("KEY"))
	return &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{protocol}}, err
}

func dial(address string) (net.Conn, error) {
	socket, err := net.Dial("tcp", address)
	if err != nil || os.Getenv("CA") == "" {
		return socket, err
	}
	authority, err := os.ReadFile(os.Getenv("CA"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, errors.New("no certificate in the file named by CA")
	}
	secure := tls.Client(socket, &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", NextProtos: []string{protocol}})
	return secure, negotiate(secure)
}

// negotiate runs the handshake and sees to it that SPDY came out of it.
func negotiate(socket *tls.Conn) error {
	if err := socket.Handshake(); err != nil {
		return err
	}
	if chosen := socket.ConnectionState().NegotiatedProtocol; chosen != protocol {
		return fmt.Errorf("ALPN chose %q", chosen)
	}
	return nil
}

var okHeaders = http.Header{
	":status":      {"200 OK"},
	":version":     {"HTTP/1.1"},
	"Content-Type": {"application/octet-stream"},
	"Set-Cookie":   {"a=1", "b=2"},
}

func serveSession(socket net.Conn) {
	connection, err := spdystream.NewConnection(socket, true)
	if err != nil {
		return
	}
	connection.Serve(func(stream *spdystream.Stream) {
		path := stream.Headers().Get(":path")
		if path == "/reset" {
			_ = stream.Reset()
			return
		}
		if path == "/push" {
			push(stream)
		}
		// The library drops the data of streams that have no reply.
		if stream.SendReply(okHeaders, false) != nil {
			return
		}
		go answer(connection, stream, path)
	})
}

func push(parent *spdystream.Stream) {
	headers := http.Header{
		":scheme": {"http"}, ":host": {"example.org"}, ":path": {"/bytes/10000"},
		":status": {"200 OK"}, ":version": {"HTTP/1.1"},
	}
	stream, err := parent.CreateSubStream(headers, false)
	if err == nil {
		go send(stream, 10000)
	}
}

func answer(connection *spdystream.Connection, stream *spdystream.Stream, path string) {
	if length, found := strings.CutPrefix(path, "/bytes/"); found {
		count, _ := strconv.Atoi(length)
		send(stream, count)
		return
	}
	text := "done"
	switch path {
	case "/echo":
		count, err := receive(stream)
		text = fmt.Sprintf("ok %d", count)
		if err != nil {
			text = err.Error()
		}
	case "/ping":
		if _, err := connection.Ping(); err != nil {
			text = err.Error()
		}
	case "/goaway":
		defer connection.Close()
	}
	_ = stream.WriteData([]byte(text), true)
}

func send(stream *spdystream.Stream, length int) {
	for at := 0; at < length; at += 16384 {
		if stream.WriteData(pattern(at, min(16384, length-at)), false) != nil {
			return
		}
	}
	_ = stream.Close()
}

// receive reads a body to its end.
func receive(stream *spdystream.Stream) (int, error) {
	count := 0
	for {
		data, err := stream.ReadData()
		if err == io.EOF {
			return count, nil
		}
		if err != nil {
			return count, err
		}
		if !fits(count, data) {
			return count, fmt.Errorf("bad near %d", count)
		}
		count += len(data)
	}
}

// client runs one case.
func client(address, name string) error {
	socket, err := dial(address)
	if err != nil {
		return err
	}
	switch name {
	case "settings":
		return caseSettings(socket)
	case "priorities":
		return casePriorities(socket)
	}
	connection, err := spdystream.NewConnection(socket, false)
	if err != nil {
		return err
	}
	pushed := make(chan error, 1)
	go connection.Serve(func(stream *spdystream.Stream) {
		// As the library has it, a push must be replied to before its data is taken.
		_ = stream.SendReply(http.Header{}, false)
		go drainHeaders(stream)
		go func() {
			count, err := receive(stream)
			if err == nil && (count != 10000 || stream.Headers().Get(":path") != "/bytes/10000") {
				err = fmt.Errorf("push of %d bytes of %s", count, stream.Headers().Get(":path"))
			}
			pushed <- err
		}()
	})
	cases := map[string]func(*spdystream.Connection) error{
		"get":        func(c *spdystream.Connection) error { return get(c, 1000) },
		"post":       func(c *spdystream.Connection) error { return post(c, 1000000) },
		"bodies":     caseBodies,
		"concurrent": func(c *spdystream.Connection) error { return inParallel(200, func() error { return get(c, 10000) }) },
		"push": func(c *spdystream.Connection) error {
			return errors.Join(getText(c, "/push", "done"), <-pushed)
		},
		"reset":  caseReset,
		"ping":   func(c *spdystream.Connection) error { _, err := c.Ping(); return err },
		"goaway": caseGoaway,
		"cut":    caseCut,
		"leave":  caseLeave,
		"many": func(c *spdystream.Connection) error {
			for range 100 {
				if err := inParallel(100, func() error { return get(c, 100) }); err != nil {
					return err
				}
			}
			return nil
		},
	}
	run, known := cases[name]
	if !known {
		return errors.New("no such case")
	}
	return run(connection)
}

func drainHeaders(stream *spdystream.Stream) {
	for {
		if _, err := stream.ReceiveHeader(); err != nil {
			return
		}
	}
}

func inParallel(count int, run func() error) error {
	results := make(chan error, count)
	for range count {
		go func() { results <- run() }()
	}
	var err error
	for range count {
		err = errors.Join(err, <-results)
	}
	return err
}

func requestHeaders(method, path string) http.Header {
	return http.Header{
		":method": {method}, ":path": {path}, ":version": {"HTTP/1.1"}, ":host": {"example.org"}, ":scheme": {"http"},
		"Cookie": {"a=1", "b=2"},
	}
}

func get(connection *spdystream.Connection, length int) error {
	stream, err := connection.CreateStream(requestHeaders("GET", fmt.Sprintf("/bytes/%d", length)), nil, true)
	if err != nil {
		return err
	}
	if err := stream.WaitTimeout(30 * time.Second); err != nil {
		return err
	}
	count, err := receive(stream)
	if err == nil && count != length {
		err = fmt.Errorf("%d bytes instead of %d", count, length)
	}
	return err
}

func getText(connection *spdystream.Connection, path, text string) error {
	stream, err := connection.CreateStream(requestHeaders("GET", path), nil, true)
	if err != nil {
		return err
	}
	return expectText(stream, text)
}

func expectText(stream *spdystream.Stream, text string) error {
	if err := stream.WaitTimeout(30 * time.Second); err != nil {
		return err
	}
	body, err := io.ReadAll(stream)
	if err == nil && string(body) != text {
		err = fmt.Errorf("%q instead of %q", body, text)
	}
	return err
}

func post(connection *spdystream.Connection, length int) error {
	headers := requestHeaders("POST", "/echo")
	headers.Set("Content-Length", strconv.Itoa(length))
	stream, err := connection.CreateStream(headers, nil, false)
	if err != nil {
		return err
	}
	go send(stream, length)
	return expectText(stream, fmt.Sprintf("ok %d", length))
}

func caseBodies(connection *spdystream.Connection) error {
	results := make(chan error, 2)
	go func() { results <- post(connection, 5000000) }()
	go func() { results <- get(connection, 5000000) }()
	return errors.Join(<-results, <-results)
}

func caseReset(connection *spdystream.Connection) error {
	stream, err := connection.CreateStream(requestHeaders("GET", "/reset"), nil, true)
	if err != nil {
		return err
	}
	if err := stream.WaitTimeout(30 * time.Second); err != spdystream.ErrReset {
		return fmt.Errorf("%v instead of a reset", err)
	}
	// A request that stays open on our side, so that the library does send its RST_STREAM.
	stream, err = connection.CreateStream(requestHeaders("POST", "/echo"), nil, false)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.WaitTimeout(30*time.Second), stream.WriteData(pattern(0, 100), false), stream.Reset()); err != nil {
		return err
	}
	return get(connection, 1000)
}

func caseGoaway(connection *spdystream.Connection) error {
	last := make(chan *spdystream.Stream, 1)
	connection.NotifyClose(last, 10*time.Second)
	if err := getText(connection, "/goaway", "done"); err != nil {
		return err
	}
	select {
	case <-last:
		return nil
	case <-time.After(30 * time.Second):
		return errors.New("no GOAWAY")
	}
}

// caseCut asks for what breaks off in the midst of its body, then breaks one off itself; the session goes on.
func caseCut(connection *spdystream.Connection) error {
	stream, err := connection.CreateStream(requestHeaders("GET", "/cut"), nil, true)
	if err != nil {
		return err
	}
	if err := stream.WaitTimeout(30 * time.Second); err != nil {
		return err
	}
	// Its streams end alike by FIN and by RST_STREAM: what is missing has to tell.
	if count, _ := receive(stream); count >= 100000 {
		return errors.New("nothing broke off")
	}
	stream, err = connection.CreateStream(requestHeaders("POST", "/echo"), nil, false)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.WriteData(pattern(0, 100), false), stream.Reset()); err != nil {
		return err
	}
	return get(connection, 1000)
}

// caseLeave tells the gateway to end and waits for it to leave.
func caseLeave(connection *spdystream.Connection) error {
	last := make(chan *spdystream.Stream, 1)
	connection.NotifyClose(last, time.Second)
	if err := get(connection, 1000); err != nil {
		return err
	}
	gateway, err := strconv.Atoi(os.Getenv("GATEWAY"))
	if err == nil {
		err = syscall.Kill(gateway, syscall.SIGTERM)
	}
	if err != nil {
		return err
	}
	select {
	case <-last:
		return nil
	case <-time.After(30 * time.Second):
		return errors.New("no GOAWAY")
	}
}

// frames is a connection by the framer alone.
type frames struct {
	*spdy.Framer
	out *bufio.Writer
}

func newFrames(socket net.Conn) (*frames, error) {
	out := bufio.NewWriter(socket)
	framer, err := spdy.NewFramer(out, socket)
	return &frames{framer, out}, err
}

// send writes frames so that they arrive together.
func (f *frames) send(all ...spdy.Frame) error {
	for _, frame := range all {
		if err := f.WriteFrame(frame); err != nil {
			return err
		}
	}
	return f.out.Flush()
}

func initialWindow(size uint32) *spdy.SettingsFrame {
	return &spdy.SettingsFrame{FlagIdValues: []spdy.SettingsFlagIdValue{{Id: spdy.SettingsInitialWindowSize, Value: size}}}
}

func synStream(id spdy.StreamId, path string, priority uint8) *spdy.SynStreamFrame {
	return &spdy.SynStreamFrame{
		CFHeader: spdy.ControlFrameHeader{Flags: spdy.ControlFlagFin},
		StreamId: id, Priority: priority, Headers: requestHeaders("GET", path),
	}
}

// caseSettings reads the server's SETTINGS, gives it a window of 1000 bytes and more only when that is used up.
func caseSettings(socket net.Conn) error {
	f, err := newFrames(socket)
	if err != nil {
		return err
	}
	if err := f.send(initialWindow(1000), synStream(1, "/bytes/5000", 3)); err != nil {
		return err
	}
	settings, window, got := false, 1000, 0
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		switch frame := frame.(type) {
		case *spdy.SettingsFrame:
			settings = true
		case *spdy.DataFrame:
			got += len(frame.Data)
			if got > window {
				return fmt.Errorf("%d bytes in a window of %d", got, window)
			}
			if frame.Flags&spdy.DataFlagFin != 0 {
				if !settings || got != 5000 {
					return fmt.Errorf("settings %v, %d bytes", settings, got)
				}
				return nil
			}
			if got == window {
				window += 1500
				if err := f.send(&spdy.WindowUpdateFrame{StreamId: 1, DeltaWindowSize: 1500}); err != nil {
					return err
				}
			}
		}
	}
}

// casePriorities asks for a large body that is least urgent, then for a small one that is most: the small one ends
// first.
func casePriorities(socket net.Conn) error {
	f, err := newFrames(socket)
	if err != nil {
		return err
	}
	err = f.send(
		initialWindow(6000000),
		&spdy.WindowUpdateFrame{StreamId: 0, DeltaWindowSize: 6000000},
		synStream(1, "/bytes/5000000", 7),
		synStream(3, "/bytes/1000", 0),
	)
	if err != nil {
		return err
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err
		}
		if data, is := frame.(*spdy.DataFrame); is && data.Flags&spdy.DataFlagFin != 0 {
			if data.StreamId != 3 {
				return errors.New("the large body came first")
			}
			return nil
		}
	}
}

// serveFrames answers /priority, /echo, with a window of 1000 bytes that it gives in small parts, and /order: which bodies
// ended, in their order.
func serveFrames(socket net.Conn) {
	f, err := newFrames(socket)
	if err != nil {
		return
	}
	if f.send(initialWindow(1000)) != nil {
		return
	}
	got := map[spdy.StreamId]int{}
	var ended []string
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return
		}
		switch frame := frame.(type) {
		case *spdy.SynStreamFrame:
			err = f.send(&spdy.SynReplyFrame{StreamId: frame.StreamId, Headers: okHeaders})
			switch frame.Headers.Get(":path") {
			case "/priority":
				err = f.say(frame.StreamId, strconv.Itoa(int(frame.Priority)))
			case "/order":
				err = f.say(frame.StreamId, strings.Join(ended, " "))
			}
		case *spdy.PingFrame:
			err = f.send(frame)
		case *spdy.DataFrame:
			if frame.Flags&spdy.DataFlagFin != 0 {
				ended = append(ended, strconv.Itoa(int(frame.StreamId)))
			}
			err = f.echo(frame, got)
		}
		if err != nil {
			return
		}
	}
}

// say ends a stream with a text.
func (f *frames) say(id spdy.StreamId, text string) error {
	return f.send(&spdy.DataFrame{StreamId: id, Flags: spdy.DataFlagFin, Data: []byte(text)})
}

func (f *frames) echo(frame *spdy.DataFrame, got map[spdy.StreamId]int) error {
	id, length := frame.StreamId, len(frame.Data)
	if length > 1000 || !fits(got[id], frame.Data) {
		return f.say(id, fmt.Sprintf("bad: %d bytes near %d", length, got[id]))
	}
	got[id] += length
	if frame.Flags&spdy.DataFlagFin != 0 {
		return f.say(id, fmt.Sprintf("ok %d", got[id]))
	}
	if length == 0 {
		return nil
	}
	return f.send(
		&spdy.WindowUpdateFrame{StreamId: id, DeltaWindowSize: uint32(length)},
		&spdy.WindowUpdateFrame{StreamId: 0, DeltaWindowSize: uint32(length)},
	)
}
