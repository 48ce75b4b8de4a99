package tiering

import (
	"encoding/json"
	"net/http"
	"time"

	"chancery/services/clients/tieringclient"
)

// Admin is where an instance offers its status and checks; *telemetry.Admin is one. What changes something is only offered to
// the same host.
type Admin interface {
	Handle(pattern string, handler http.HandlerFunc)
	HandleLocal(pattern string, handler http.HandlerFunc)
}

// Offer answers the command line on an admin port.
func (s *Server) Offer(a Admin) {
	a.Handle("GET "+tieringclient.StatusPath, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Status()) })
	a.Handle("GET "+tieringclient.CheckPath, func(w http.ResponseWriter, r *http.Request) {
		s.check(w, r, CheckOptions{Verify: r.URL.Query().Get("verify") == "true", Former: r.URL.Query()["former-prefix"]})
	})
	a.HandleLocal("POST "+tieringclient.CheckPath, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		s.check(w, r, CheckOptions{
			Repair: q.Get("repair") == "true", ForgetMissing: q.Get("forget-missing") == "true", Verify: q.Get("verify") == "true", Former: q["former-prefix"],
		})
	})
}

func (s *Server) check(w http.ResponseWriter, r *http.Request, o CheckOptions) {
	o.OlderThan = sweepAge
	if text := r.URL.Query().Get("older-than"); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			http.Error(w, "older-than is "+text+": want a time such as 24h", http.StatusBadRequest)
			return
		}
		o.OlderThan = d
	}
	report, err := s.Check(r.Context(), o)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	writeJSON(w, report)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	// A client that has gone away is no concern of ours.
	_ = json.NewEncoder(w).Encode(v)
}
