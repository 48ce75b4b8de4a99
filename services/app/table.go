package app

import (
	"fmt"
	"slices"
	"strings"

	"chancery/services/lifecycle"
)

// Target is what a process runs: one service, or all of them.
type Target string

// The targets.
const (
	All          Target = "all"
	Gateway      Target = "gateway"
	Storaged     Target = "storaged"
	Controllerd  Target = "controllerd"
	Coordinatord Target = "coordinatord"
	Tiering      Target = "tiering"
)

// targets are the components that each target is about; what they need comes by itself.
var targets = map[Target][]string{
	All:          {"controllerd", "storaged", "coordinatord", "tiering", "gateway"},
	Gateway:      {"gateway"},
	Storaged:     {"storaged"},
	Controllerd:  {"controllerd"},
	Coordinatord: {"coordinatord"},
	Tiering:      {"tiering"},
}

// component is a part of a process.
type component struct {
	name string
	// needs are the components that must be in the process too. They stand above it in the table.
	needs []string
	// build makes the part, with what the parts above it have put into p. A nil service has nothing to start.
	build func(p *parts) (lifecycle.Service, error)
}

// components is every part in the order of the start; the end goes backwards. Servers come before the services that
// register on them, and end after them. The gateway comes last, so that clients are let in when everything behind
// it serves, and it leaves first.
func components() []component {
	return []component{
		{name: "admin", build: buildAdmin},
		{name: "grpc", build: buildServers},
		{name: "controllerd", needs: []string{"admin", "grpc"}, build: buildController},
		{name: "metadata", needs: []string{"admin"}, build: buildMetadata},
		{name: "clients", needs: []string{"metadata"}, build: buildClients},
		{name: "storaged", needs: []string{"grpc", "clients"}, build: buildStorage},
		{name: "coordinatord", needs: []string{"grpc", "clients"}, build: buildCoordinator},
		{name: "tiering", needs: []string{"grpc", "clients"}, build: buildTiering},
		{name: "gateway", needs: []string{"clients"}, build: buildGateway},
	}
}

// componentsOf gives the parts of a target in the order of the start.
func componentsOf(t Target) ([]component, error) {
	roots, ok := targets[t]
	if !ok {
		return nil, fmt.Errorf("no target %q; there are %s", t, strings.Join(targetNames(), ", "))
	}
	all := components()
	wanted := map[string]bool{}
	for _, r := range roots {
		wanted[r] = true
	}
	// What a component needs stands above it, so one pass from the end finds all.
	for _, c := range slices.Backward(all) {
		for _, n := range c.needs {
			wanted[n] = wanted[n] || wanted[c.name]
		}
	}
	return slices.DeleteFunc(all, func(c component) bool { return !wanted[c.name] }), nil
}

func targetNames() []string {
	var names []string
	for t := range targets {
		names = append(names, string(t))
	}
	slices.Sort(names)
	return names
}
