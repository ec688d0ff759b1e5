// Package ends has the parts that the baselines of experiments/baselines.toml share: an HTTP proxy
// at the near side, and a listener over UDP at the far side.
//
// The lab gives both ends their addresses and the certificate in the environment:
//
//	near: an HTTP proxy on $PROXY. Each connection to an origin is a stream to the other end.
//	far:  the other end on $GATEWAY (UDP). It listens on $READY (TCP) once it is up.
//
// The certificate is in the PEM files $CERT and $KEY.
package ends

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"sync"
)

// A Dialler returns a connection to an origin through the other end.
type Dialler func(target string) (net.Conn, error)

// Near serves the HTTP proxy. The connection to the other end begins with the first request.
func Near(connect func() (Dialler, error)) error {
	var lock sync.Mutex
	var connected Dialler
	dialler := func() (Dialler, error) {
		lock.Lock()
		defer lock.Unlock()
		if connected != nil {
			return connected, nil
		}
		var err error
		connected, err = connect()
		return connected, err
	}
	transport := &http.Transport{
		DialContext: func(_ context.Context, _, target string) (net.Conn, error) {
			dial, err := dialler()
			if err != nil {
				return nil, err
			}
			// Dials run side by side: some libraries wait for the other end's connection.
			return dial(target)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: 256,
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(request *httputil.ProxyRequest) {
			// Otherwise the proxy leaves out parameters that it cannot parse.
			request.Out.URL.RawQuery = request.In.URL.RawQuery
		},
		FlushInterval: -1,
	}
	return http.ListenAndServe(os.Getenv("PROXY"), proxy)
}

// Far serves the other end, and accepts connections over TCP once it is up.
func Far(serve func(net.PacketConn, tls.Certificate) error) error {
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

// Authorities returns the certificate of the other end as the only one to trust.
func Authorities() (*x509.CertPool, error) {
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

// ServerName returns the name that the certificate of the other end must have.
func ServerName() string {
	host, _, _ := net.SplitHostPort(os.Getenv("GATEWAY"))
	return host
}
