package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// open sends the head of a tunnel, and returns its stream once the response is positive.
func (p *peer) open(request *http.Request) (*http3.RequestStream, error) {
	select {
	case <-p.session.ReceivedSettings():
	case <-time.After(10 * time.Second):
		return nil, errors.New("no SETTINGS within 10 s")
	}
	stream, err := p.session.OpenRequestStream(context.Background())
	if err != nil {
		return nil, err
	}
	stream.SetDeadline(time.Now().Add(30 * time.Second))
	if err := stream.SendRequestHeader(request); err != nil {
		return nil, err
	}
	response, err := stream.ReadResponse()
	if err != nil {
		return nil, err
	}
	return stream, same("status", response.StatusCode, 200)
}

// echoed writes a mebibyte, ends its direction, and expects the same bytes and then the end.
func echoed(stream *http3.RequestStream) error {
	go func() {
		stream.Write(mib)
		stream.Close()
	}()
	back, err := io.ReadAll(stream)
	if err != nil {
		return fmt.Errorf("after %d bytes: %w", len(back), err)
	}
	if string(back) != string(mib) {
		return fmt.Errorf("%d bytes, not the %d expected ones", len(back), len(mib))
	}
	return nil
}

// connect opens a tunnel by CONNECT to a server that echoes.
func connect(p *peer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer listener.Close()
	go func() {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		io.Copy(connection, connection)
		connection.Close()
	}()
	target := listener.Addr().String()
	stream, err := p.open(&http.Request{
		Method: http.MethodConnect,
		URL:    &url.URL{Host: target},
		Host:   target,
		Header: http.Header{},
	})
	if err != nil {
		return err
	}
	return echoed(stream)
}

// websocket opens a tunnel by extended CONNECT (RFC 9220) to a server that echoes.
func websocket(p *peer) error {
	stream, err := p.open(&http.Request{
		Method: http.MethodConnect,
		Proto:  "websocket",
		URL:    &url.URL{Scheme: "https", Host: p.address, Path: "/socket"},
		Host:   p.address,
		Header: http.Header{"Sec-Websocket-Version": {"13"}},
	})
	if err != nil {
		return err
	}
	return echoed(stream)
}

// datagrams sends UDP datagrams through the server (RFC 9298), to one that echoes.
func datagrams(p *peer) error {
	socket, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer socket.Close()
	go func() {
		buffer := make([]byte, 2048)
		for {
			length, from, err := socket.ReadFromUDP(buffer)
			if err != nil {
				return
			}
			socket.WriteToUDP(buffer[:length], from)
		}
	}()
	target := socket.LocalAddr().(*net.UDPAddr)
	path := fmt.Sprintf("/.well-known/masque/udp/%s/%d/", target.IP, target.Port)
	stream, err := p.open(&http.Request{
		Method: http.MethodConnect,
		Proto:  "connect-udp",
		URL:    &url.URL{Scheme: "https", Host: p.address, Path: path},
		Host:   p.address,
		Header: http.Header{"Capsule-Protocol": {"?1"}},
	})
	if err != nil {
		return err
	}
	if !p.session.Settings().EnableDatagrams {
		return errors.New("the settings do not permit datagrams")
	}
	// The first byte is the context of UDP payloads.
	payload := "\x00hello"
	if err := stream.SendDatagram([]byte(payload)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	back, err := stream.ReceiveDatagram(ctx)
	if err != nil {
		return err
	}
	return same("datagram", string(back), payload)
}

// early closes the connection, and returns with a ticket. The first packets carry the request.
func early(p *peer) error {
	if err := get(p); err != nil {
		return err
	}
	// The ticket follows the handshake.
	time.Sleep(100 * time.Millisecond)
	p.connection.CloseWithError(0, "")
	if err := p.connect(); err != nil {
		return err
	}
	r, err := p.whole(exchange{method: http3.MethodGet0RTT, path: "/page"}, 200, "page")
	if err != nil {
		return err
	}
	if !p.connection.ConnectionState().Used0RTT {
		return fmt.Errorf("the early data was not accepted, with status %d", r.StatusCode)
	}
	return nil
}
