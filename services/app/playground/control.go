package playground

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"syscall"
)

// The commands that name a process.
const (
	Kill   = "kill"
	Stop   = "stop"
	Start  = "start"
	Pause  = "pause"
	Resume = "resume"
)

// commandDown ends the whole playground.
const commandDown = "down"

// controlHandler serves the commands of other processes.
func (s *supervisor) controlHandler(secret string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.processes()) // An error means that the asker has gone.
	})
	mux.HandleFunc("POST /{command}", func(w http.ResponseWriter, r *http.Request) {
		err := s.command(r.Context(), r.PathValue("command"), r.URL.Query().Get("name"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	want := []byte("Bearer " + secret)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), want) != 1 {
			http.Error(w, "not the owner of this playground", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *supervisor) command(ctx context.Context, command, name string) error {
	if command == commandDown {
		return s.down(ctx)
	}
	c, err := s.find(name)
	if err != nil {
		return err
	}
	switch command {
	case Kill:
		return c.end(ctx, syscall.SIGKILL, Killed)
	case Stop:
		return c.end(ctx, syscall.SIGTERM, Stopped)
	case Start:
		return c.start()
	case Pause:
		return c.pause()
	case Resume:
		return c.resume()
	}
	return fmt.Errorf("unknown command %q", command)
}

// Status asks the supervisor of a folder for its processes.
func Status(ctx context.Context, dir string) ([]Process, error) {
	state, err := readState(dir)
	if err != nil {
		return nil, err
	}
	body, err := ask(ctx, dir, state, http.MethodGet, "status")
	if err != nil {
		return nil, err
	}
	var processes []Process
	return processes, json.Unmarshal(body, &processes)
}

// Command has the supervisor of a folder kill, stop, start, pause or resume a process, and waits until that is done.
func Command(ctx context.Context, dir, command, name string) error {
	state, err := readState(dir)
	if err != nil {
		return err
	}
	_, err = ask(ctx, dir, state, http.MethodPost, command+"?name="+url.QueryEscape(name))
	return err
}

// Down ends the playground of a folder, and waits until all its processes have ended.
func Down(ctx context.Context, dir string) error {
	state, err := readState(dir)
	if err != nil {
		return err
	}
	_, err = ask(ctx, dir, state, http.MethodPost, commandDown)
	return err
}

func ask(ctx context.Context, dir string, state stateOnDisk, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+state.Control+"/"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+state.Secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		return nil, gone(dir, state)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(bytes.ToValidUTF8(body, nil))))
	}
	return body, nil
}

func gone(dir string, state stateOnDisk) error {
	return fmt.Errorf("no playground runs in %s: process %d, which wrote %s, does not answer", dir, state.PID, stateFile)
}
