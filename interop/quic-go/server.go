package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

// An origin answers as the origin of bridge/peer.js does, by path, and opens tunnels.
type origin struct {
	server *http3.Server
	// The number of servers before this one.
	number int

	lock     sync.Mutex
	together []chan struct{}
}

// serve listens on a free port. After each path `/leave` it sends GOAWAY on all its connections,
// and a new server takes the next ones.
func serve(cert, key string) error {
	certificate, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	config := http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{certificate}})
	listener, err := quic.ListenAddrEarly("127.0.0.1:0", config, quicConfig())
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	for number := 0; ; number++ {
		current := &origin{number: number}
		current.server = &http3.Server{Handler: current, EnableDatagrams: true}
		if err := current.server.ServeListener(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
}

func (o *origin) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	if request.Method == http.MethodConnect {
		tunnel(response, request)
		return
	}
	fields := response.Header()
	switch request.URL.Path {
	case "/page":
		fields.Set("etag", `"1"`)
		if request.Header.Get("if-none-match") == `"1"` {
			response.WriteHeader(http.StatusNotModified)
			return
		}
		fields.Set("content-length", "4")
		fields.Set("seen-via", orNone(request.Header.Get("via")))
		fields.Set("seen-test", orNone(request.Header.Get("test")))
		fields.Set("seen-server", fmt.Sprint(o.number))
		io.WriteString(response, "page")
	case "/large":
		fields.Set("content-type", "application/octet-stream")
		response.Write(mib)
	case "/hints":
		fields.Set("link", "</style.css>; rel=preload; as=style")
		response.WriteHeader(http.StatusEarlyHints)
		fields.Del("link")
		io.WriteString(response, "page")
	case "/cut":
		fields.Set("content-length", "1000")
		io.WriteString(response, "half")
		response.(http.Flusher).Flush()
		time.Sleep(100 * time.Millisecond)
		panic(http.ErrAbortHandler)
	case "/together":
		<-o.arrive()
		io.WriteString(response, "together")
	case "/echo":
		body, err := io.ReadAll(request.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		fields.Set("trailer", "after, seen")
		response.Write(body)
		response.(http.Flusher).Flush()
		fields.Set("after", "yes")
		fields.Set("seen", orNone(request.Trailer.Get("sent")))
	case "/unread":
		// http3 then stops the rest of the request, with H3_NO_ERROR.
		response.WriteHeader(http.StatusRequestEntityTooLarge)
		io.WriteString(response, "unread")
	case "/leave":
		io.WriteString(response, "leave")
		go o.server.Shutdown(context.Background())
	default:
		response.WriteHeader(http.StatusNotFound)
	}
}

func orNone(value string) string {
	if value == "" {
		return "none"
	}
	return value
}

// arrive returns a channel that is closed once 100 requests have arrived.
func (o *origin) arrive() <-chan struct{} {
	o.lock.Lock()
	defer o.lock.Unlock()
	waiting := make(chan struct{})
	o.together = append(o.together, waiting)
	if len(o.together) == 100 {
		for _, each := range o.together {
			close(each)
		}
		o.together = nil
	}
	return waiting
}

// tunnel connects to a server on this machine, or echoes the bytes of a WebSocket.
func tunnel(response http.ResponseWriter, request *http.Request) {
	var target io.ReadWriteCloser
	switch request.Proto {
	case "websocket":
		response.Header().Set("sec-websocket-protocol", request.Header.Get("sec-websocket-protocol"))
	case "HTTP/3.0":
		host, _, _ := net.SplitHostPort(request.Host)
		if address := net.ParseIP(host); address == nil || !address.IsLoopback() {
			response.WriteHeader(http.StatusForbidden)
			return
		}
		connection, err := net.DialTimeout("tcp", request.Host, 10*time.Second)
		if err != nil {
			response.WriteHeader(http.StatusBadGateway)
			return
		}
		target = connection
	default:
		response.WriteHeader(http.StatusNotImplemented)
		return
	}
	response.WriteHeader(http.StatusOK)
	stream := response.(http3.HTTPStreamer).HTTPStream()
	if target == nil {
		io.Copy(stream, stream)
		stream.Close()
		return
	}
	go func() {
		io.Copy(target, stream)
		target.(*net.TCPConn).CloseWrite()
	}()
	io.Copy(stream, target)
	stream.Close()
	target.Close()
}
