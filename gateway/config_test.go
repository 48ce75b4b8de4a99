package gateway_test

import (
	"strings"
	"testing"

	"chancery/gateway"
)

func TestBadSettingsAreRefused(t *testing.T) {
	for config, want := range map[string]string{
		"listeners=nonsense":                               "not NAME://host:port",
		"listeners=PLAINTEXT://x:70000":                    "no port",
		"listeners=SSL://:1":                               "the gateway serves PLAINTEXT",
		"listeners=OTHER://:1":                             "no security protocol",
		"listeners=PLAINTEXT://:1,PLAINTEXT://:2":          "two listeners",
		"advertised.listeners=OTHER://a:1":                 "no listener OTHER",
		"advertised.listeners=PLAINTEXT://0.0.0.0:1":       "cannot dial",
		"node.ports=1":                                     "node.id:port",
		"max.connections.per.ip.overrides=x":               "not host:count",
		"max.connections.per.ip.overrides=127.0.0.1:minus": "not host:count",
		"listener.security.protocol.map=PLAINTEXT":         "not NAME:PROTOCOL",
	} {
		key, value, _ := strings.Cut(config, "=")
		_, err := gateway.New(gateway.Config{Properties: map[string]string{key: value}}, gateway.Deps{})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
