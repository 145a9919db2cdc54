package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

// result is what a load measured.
type result struct {
	requests float64
	rate     float64 // answers a second
	p50, p99 time.Duration
	cpu      float64 // µs of the server's CPU time for a request; set by the runner
}

// load posts body from n connections, each of which sends its next request when it has the answer to the last. It is
// written on bare connections because the generator shares the cores with the server: net/http's client costs more
// than the servers.
func load(address string, body []byte, n int, turn time.Duration) (result, error) {
	u, err := url.Parse(address)
	if err != nil {
		return result{}, err
	}
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/octet-stream\r\nContent-Length: %d\r\n\r\n%s", u.RequestURI(), u.Host, len(body), body)
	conns := make([]net.Conn, n)
	for i := range conns {
		if conns[i], err = net.Dial("tcp", u.Host); err != nil {
			return result{}, err
		}
		defer conns[i].Close()
	}
	var mu sync.Mutex
	var all []time.Duration
	var failed error
	var wg sync.WaitGroup
	begun := time.Now()
	end := begun.Add(turn)
	for _, c := range conns {
		wg.Go(func() {
			took, err := client(c, request, end)
			mu.Lock()
			defer mu.Unlock()
			if all = append(all, took...); failed == nil {
				failed = err
			}
		})
	}
	wg.Wait()
	elapsed := time.Since(begun)
	if failed != nil {
		return result{}, failed
	}
	slices.Sort(all)
	return result{requests: float64(len(all)), rate: float64(len(all)) / elapsed.Seconds(), p50: all[len(all)/2], p99: all[len(all)*99/100]}, nil
}

// client sends requests until end and returns how long each took.
func client(c net.Conn, request []byte, end time.Time) (took []time.Duration, err error) {
	if err := c.SetDeadline(end.Add(30 * time.Second)); err != nil {
		return nil, err
	}
	r := bufio.NewReader(c)
	for {
		begun := time.Now()
		if begun.After(end) && len(took) > 0 {
			return took, nil
		}
		if _, err := c.Write(request); err != nil {
			return took, err
		}
		if err := skipAnswer(r); err != nil {
			return took, err
		}
		took = append(took, time.Since(begun))
	}
}

// skipAnswer reads an answer with status 200 and a Content-Length.
func skipAnswer(r *bufio.Reader) error {
	length := -1
	for first := true; ; first = false {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimSpace(line)
		if first {
			if f := bytes.Fields(line); len(f) < 2 || string(f[1]) != "200" {
				return fmt.Errorf("the server answers %q", line)
			}
			continue
		}
		if len(line) == 0 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return fmt.Errorf("an answer without Content-Length")
	}
	_, err := io.CopyN(io.Discard, r, int64(length))
	return err
}
