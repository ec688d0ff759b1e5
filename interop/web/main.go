// What stands outside of the pair in interop/tls.sh: an origin for the gateway, and a browser for the client. The paths
// are those of crates/spdy/examples/peer.rs.
//
//	web origin                            prints its address, serves until killed
//	web browse PROXY METRICS CASE         exits with 0 when the case holds
//
// PROXY is the client's HTTP proxy; METRICS is where it counts its sessions.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 1 && args[0] == "origin":
		err = origin()
	case len(args) == 4 && args[0] == "browse":
		err = newBrowser(args[1], args[2]).run(args[3])
	default:
		err = errors.New("usage: web origin | web browse PROXY METRICS CASE")
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

func origin() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, http.HandlerFunc(answer))
}

func answer(response http.ResponseWriter, request *http.Request) {
	header := response.Header()
	header.Set("Content-Type", "application/octet-stream")
	header["Set-Cookie"] = []string{"a=1", "b=2"}
	if length, found := strings.CutPrefix(request.URL.Path, "/bytes/"); found {
		count, _ := strconv.Atoi(length)
		header.Set("Content-Length", length)
		_, _ = response.Write(pattern(0, count))
		return
	}
	text := "done"
	switch request.URL.Path {
	case "/echo":
		body, err := io.ReadAll(request.Body)
		text = fmt.Sprintf("ok %d", len(body))
		if err != nil || !bytes.Equal(body, pattern(0, len(body))) {
			text = fmt.Sprintf("bad: %d bytes, %v", len(body), err)
		}
	case "/push":
		header.Set("X-Associated-Content", `"/bytes/10000"`)
	case "/cut":
		header.Set("Content-Length", "100000")
		_, _ = response.Write(pattern(0, 50000))
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(response, text)
}

// browser asks through the proxy, over as many connections as it likes.
type browser struct {
	metrics string
	client  *http.Client
}

func newBrowser(proxy, metrics string) *browser {
	transport := &http.Transport{
		Proxy:               http.ProxyURL(&url.URL{Scheme: "http", Host: proxy}),
		MaxIdleConnsPerHost: 200,
		DisableCompression:  true,
	}
	return &browser{metrics, &http.Client{Transport: transport, Timeout: 60 * time.Second}}
}

func (b *browser) run(name string) error {
	cases := map[string]func() error{
		"get":           b.caseGet,
		"post":          func() error { return b.post(1000000) },
		"bodies":        b.caseBodies,
		"concurrent":    func() error { return inParallel(200, func() error { return b.bytes(10000) }) },
		"push":          b.casePush,
		"push-of-https": b.casePushOfHTTPS,
		"reset":         b.caseReset,
		"cancel":        b.caseCancel,
		"ping":          func() error { return b.text("/ping", "done") },
		"goaway":        b.caseGoaway,
		"many":          b.caseMany,
	}
	run, known := cases[name]
	if !known {
		return errors.New("no such case")
	}
	if err := run(); err != nil {
		return err
	}
	sessions := 1
	if name == "goaway" {
		sessions = 2
	}
	return b.counted("tandem_sessions_opened_total", sessions)
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

func address(path string) string { return "http://example.org" + path }

func (b *browser) bytes(length int) error {
	response, err := b.client.Get(address(fmt.Sprintf("/bytes/%d", length)))
	if err != nil {
		return err
	}
	return expect(response, pattern(0, length))
}

func (b *browser) text(path, text string) error {
	response, err := b.client.Get(address(path))
	if err != nil {
		return err
	}
	return expect(response, []byte(text))
}

func expect(response *http.Response, body []byte) error {
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err == nil && (response.StatusCode != 200 || !bytes.Equal(got, body)) {
		err = fmt.Errorf("%s: %d bytes, not the %d that were to come: %.200q", response.Status, len(got), len(body), got)
	}
	return err
}

func (b *browser) post(length int) error {
	response, err := b.client.Post(address("/echo"), "application/octet-stream", bytes.NewReader(pattern(0, length)))
	if err != nil {
		return err
	}
	return expect(response, []byte(fmt.Sprintf("ok %d", length)))
}

func (b *browser) caseGet() error {
	response, err := b.client.Get(address("/bytes/1000"))
	if err != nil {
		return err
	}
	if cookies := strings.Join(response.Header["Set-Cookie"], ", "); cookies != "a=1, b=2" {
		return fmt.Errorf("cookies: %s", cookies)
	}
	return expect(response, pattern(0, 1000))
}

func (b *browser) caseBodies() error {
	up := make(chan error, 1)
	go func() { up <- b.post(5000000) }()
	return errors.Join(b.bytes(5000000), <-up)
}

// casePush asks for what was pushed, so that it is not asked for again over there.
func (b *browser) casePush() error {
	if err := b.casePushOfHTTPS(); err != nil {
		return err
	}
	used, err := b.count("tandem_pushes_used_total")
	late, lateErr := b.count("tandem_pushes_late_total")
	if err = errors.Join(err, lateErr); err == nil && used+late != 1 {
		err = errors.New("the push was not what the browser got")
	}
	return err
}

// casePushOfHTTPS takes a push that it has no use for.
func (b *browser) casePushOfHTTPS() error {
	if err := b.text("/push", "done"); err != nil {
		return err
	}
	if err := b.bytes(10000); err != nil {
		return err
	}
	return b.counted("tandem_pushes_received_total", 1)
}

// caseReset asks for what the server resets: a gateway's error, and the session goes on.
func (b *browser) caseReset() error {
	response, err := b.client.Get(address("/reset"))
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != 502 {
		return fmt.Errorf("%s instead of 502", response.Status)
	}
	return b.bytes(1000)
}

// caseCancel goes away in the midst of a body; the session goes on.
func (b *browser) caseCancel() error {
	response, err := b.client.Get(address("/bytes/5000000"))
	if err != nil {
		return err
	}
	if _, err = io.ReadFull(response.Body, make([]byte, 100000)); err != nil {
		return err
	}
	_ = response.Body.Close()
	return b.bytes(1000)
}

// caseGoaway goes on over a new session when the server leaves.
func (b *browser) caseGoaway() error {
	if err := b.text("/goaway", "done"); err != nil {
		return err
	}
	return b.bytes(1000)
}

func (b *browser) caseMany() error {
	return inParallel(100, func() error {
		for range 100 {
			if err := b.bytes(100); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *browser) counted(name string, count int) error {
	got, err := b.count(name)
	if err == nil && got != count {
		err = fmt.Errorf("%s is %d instead of %d", name, got, count)
	}
	return err
}

func (b *browser) count(name string) (int, error) {
	response, err := http.Get(b.metrics)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	for _, line := range strings.Split(string(text), "\n") {
		if number, found := strings.CutPrefix(line, name+" "); found {
			return strconv.Atoi(number)
		}
	}
	return 0, errors.Join(err, fmt.Errorf("no %s in %s", name, b.metrics))
}
