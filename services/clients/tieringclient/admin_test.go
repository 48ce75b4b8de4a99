package tieringclient

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestAskAdminOfAnotherProcess(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	err := AskAdmin(t.Context(), http.MethodGet, other.Listener.Addr().String(), StatusPath, nil, new([]PartitionStatus))
	if err == nil || !strings.Contains(err.Error(), "remote.log.storage.system.enable=true") {
		t.Errorf("%v does not say what would be right", err)
	}
}
