package tieringadmin

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"chancery/services/clients/tieringclient"
)

// instance answers as a tiering instance does.
func instance(t *testing.T, report tieringclient.CheckReport, asked *http.Request) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = *r
		if err := json.NewEncoder(w).Encode(report); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestCheck(t *testing.T) {
	difference := func(kind string, repaired bool) tieringclient.CheckReport {
		return tieringclient.CheckReport{Shards: 2, ShardsInAll: 2, Differences: []tieringclient.Difference{{Kind: kind, Key: "the/key", Repaired: repaired}}}
	}
	for name, c := range map[string]struct {
		report      tieringclient.CheckReport
		differences bool
		problem     string
	}{
		"alike":              {tieringclient.CheckReport{Shards: 2, ShardsInAll: 2}, false, ""},
		"an orphan":          {difference("orphan", false), true, ""},
		"a repaired orphan":  {difference("orphan", true), false, ""},
		"somebody else's":    {difference("foreign", false), false, ""},
		"not all shards":     {tieringclient.CheckReport{Shards: 1, ShardsInAll: 2}, false, "1 of 2 shards"},
		"work that failed":   {tieringclient.CheckReport{Shards: 2, ShardsInAll: 2, Errors: []string{"refused"}}, false, "1 things could not be done"},
		"no shards to check": {tieringclient.CheckReport{}, false, ""},
	} {
		var asked http.Request
		address := instance(t, c.report, &asked)
		for _, asJSON := range []bool{false, true} {
			var out bytes.Buffer
			err := Check(t.Context(), &out, Instances{Addresses: []string{address}, JSON: asJSON}, CheckOptions{FormerPrefixes: []string{"old"}, Verify: true})
			if errors.Is(err, ErrDifferences) != c.differences || (err != nil && !c.differences) != (c.problem != "") || err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%s: %v", name, err)
			}
			var reports []tieringclient.CheckReport
			if asJSON && (json.Unmarshal(out.Bytes(), &reports) != nil || len(reports) != 1 || reports[0].Instance != address) {
				t.Errorf("%s: %s", name, out.String())
			}
			if len(c.report.Differences) > 0 && !strings.Contains(out.String(), "the/key") {
				t.Errorf("%s: %s", name, out.String())
			}
		}
		if q := asked.URL.Query(); asked.Method != http.MethodGet || q.Get("former-prefix") != "old" || q.Get("verify") != "true" {
			t.Errorf("%s: %s %s", name, asked.Method, asked.URL)
		}
	}
}

// TestOneInstanceAway: what the others say is printed all the same.
func TestOneInstanceAway(t *testing.T) {
	var asked http.Request
	address := instance(t, tieringclient.CheckReport{Shards: 2, ShardsInAll: 2}, &asked)
	var out bytes.Buffer
	err := Check(t.Context(), &out, Instances{Addresses: []string{"127.0.0.1:1", address}}, CheckOptions{Repair: true})
	if err == nil || errors.Is(err, ErrDifferences) || !strings.Contains(out.String(), address+": 2 of 2 shards") || asked.Method != http.MethodPost {
		t.Errorf("%v: %s", err, out.String())
	}
}
