// The foreign ends of HTTP/3: a server and a client, from the package http3 of quic-go.
//
//	quic-go server CERT KEY              writes its address; serves pages, and tunnels to loopback
//	quic-go client ADDRESS CERT CASE     ends with status 1 and a message unless the case holds
//
// CERT is the certificate of the server in both roles. CASE is one of the names in `cases`.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quic-go/quic-go"
)

// The large body: as in bridge/peer.js.
var mib = bytes.Repeat([]byte("tandem bridge "), 1<<20/14+1)[:1<<20]

func main() {
	err := errors.New("usage: quic-go server CERT KEY | quic-go client ADDRESS CERT CASE")
	switch arguments := os.Args[1:]; {
	case len(arguments) == 3 && arguments[0] == "server":
		err = serve(arguments[1], arguments[2])
	case len(arguments) == 4 && arguments[0] == "client":
		err = ask(arguments[1], arguments[2], arguments[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// quicConfig permits more streams than any case opens, and early data.
func quicConfig() *quic.Config {
	return &quic.Config{
		MaxIncomingStreams: 128,
		MaxIdleTimeout:     30 * time.Second,
		EnableDatagrams:    true,
		Allow0RTT:          true,
	}
}

// trust returns the configuration of a client that trusts this certificate only.
func trust(cert string) (*tls.Config, error) {
	text, err := os.ReadFile(cert)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("no certificate in %s", cert)
	}
	return &tls.Config{RootCAs: pool}, nil
}
