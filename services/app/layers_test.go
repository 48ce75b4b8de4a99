package app_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "chancery"

// root is the module's folder, seen from this test.
const root = "../.."

// services are the folders that hold a service each.
var services = []string{"gateway", "storaged", "controllerd", "coordinatord", "tiering"}

// top are the folders above the services: what puts them together, and what tests them whole.
var top = []string{"services/app", "services/cmd", "services/testkit", "services/e2e"}

// simulations are what the simulator, and nobody else, sees of the insides of services.
var simulations = []string{"storaged/simulation", "controllerd/simulation"}

// layer is what a package may import of ours.
type layer struct {
	// in are the folders that the layer is about; the first layer that has a package decides about it.
	in  []string
	may []string
	why string
}

// leaves are parts of testkit that know nothing of a cluster, so that tests of shared packages may use them, too.
var leaves = []string{"services/testkit/s3", "services/testkit/ports"}

// layers is the picture of ARCHITECTURE.md: arrows run from cmd to app to services to shared packages to proto.
var layers = []layer{
	{[]string{"proto"}, []string{"proto"}, "contracts know nobody"},
	{[]string{"services/kafka"}, []string{"services/kafka"}, "Kafka's formats and rules stand for themselves"},
	{[]string{"services/cmd"}, []string{"services/app", "services/config", "services/telemetry"}, "main is thin"},
	{[]string{"services/e2e"}, []string{"services/e2e", "services/testkit"}, "tests with real clients see a cluster from outside"},
	{leaves, leaves, "servers for tests, and their ports, know nothing of ours"},
	{[]string{"services/testkit/sim"}, append([]string{"services/testkit/sim", "services/kafka", "services/metadata", "services/storage", "services/vfs"}, simulations...),
		"the simulator plays services and has none"},
	{[]string{"services/testkit"}, []string{"services/testkit", "services/app", "services/config"}, "test clusters are put together by app"},
	{[]string{"services/app/playground"}, nil, "a playground knows its children as an operator does"},
	{[]string{"services/app"}, append([]string{"proto", "services"}, services...), "app wires everything"},
	{[]string{"gateway"}, []string{"gateway", "services", "proto"}, "no service imports another"},
	{[]string{"storaged"}, []string{"storaged", "services", "proto"}, "no service imports another"},
	{[]string{"controllerd"}, []string{"controllerd", "services", "proto"}, "no service imports another"},
	{[]string{"coordinatord"}, []string{"coordinatord", "services", "proto"}, "no service imports another"},
	{[]string{"tiering"}, []string{"tiering", "services", "proto"}, "no service imports another"},
	{[]string{"services"}, []string{"services", "proto"}, "shared packages do not know who uses them"},
}

// external are packages of others that one folder alone may import.
var external = map[string]string{
	"google.golang.org/grpc/experimental": "services/transport",
	"go.etcd.io/":                         "controllerd",
	"github.com/spf13/":                   "services/cmd",
}

// pure are the folders whose code takes events and time and gives effects: no clock, file, socket or goroutine.
var pure = []string{
	"services/kafka",
	"storaged/internal/partition",
}

// impure are the imports that a pure package does without.
var impure = []string{"os", "net", "net/http", "log", "log/slog", "math/rand", "math/rand/v2"}

// impureCalls are functions that a pure package does without, by package and name.
var impureCalls = []string{"time.Now", "time.Since", "time.Until", "time.Sleep", "time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker"}

// source is one Go file of ours.
type source struct {
	file string // relative to the root
	dir  string
	ast  *ast.File
	set  *token.FileSet
	test bool
}

func (s source) at(pos token.Pos) string {
	return fmt.Sprintf("%s:%d", s.file, s.set.Position(pos).Line)
}

// sources reads every file by itself, so that the test cache sees when one changes.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	set := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && name != root && (strings.HasPrefix(e.Name(), ".") || e.Name() == "testdata") {
			return fs.SkipDir
		}
		if e.IsDir() || !strings.HasSuffix(name, ".go") {
			return nil
		}
		file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		relative = filepath.ToSlash(relative)
		all = append(all, source{file: relative, dir: path.Dir(relative), ast: file, set: set, test: strings.HasSuffix(name, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// within says whether a folder is one of those given, or below one.
func within(dir string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return dir == f || strings.HasPrefix(dir, f+"/") })
}

func TestLayers(t *testing.T) {
	for _, s := range sources(t) {
		for _, spec := range s.ast.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			ours, isOurs := strings.CutPrefix(imported, module+"/")
			if !isOurs {
				checkExternal(t, s, spec, imported)
				continue
			}
			if s.test && within(ours, leaves) {
				continue
			}
			if reason := forbidden(s.dir, ours); reason != "" {
				t.Errorf("%s imports %s: %s", s.at(spec.Pos()), ours, reason)
			}
		}
	}
}

func TestLayersKnowEveryFolder(t *testing.T) {
	for _, s := range sources(t) {
		if !slices.ContainsFunc(layers, func(l layer) bool { return within(s.dir, l.in) }) {
			t.Errorf("%s is in no layer", s.file)
		}
	}
}

// forbidden says why a package may not import another one of ours; empty when it may.
func forbidden(from, to string) string {
	for _, l := range layers {
		if !within(from, l.in) {
			continue
		}
		if !within(to, l.may) && !within(to, l.in) {
			return l.why
		}
		if within(to, simulations) && !within(from, append([]string{"services/testkit/sim"}, simulations...)) {
			return "only the simulator looks into services"
		}
		if within(to, top) && !within(from, top) {
			return "only tests with real clients and main stand above app"
		}
		return ""
	}
	return "no layer"
}

func checkExternal(t *testing.T, s source, spec *ast.ImportSpec, imported string) {
	t.Helper()
	for prefix, owner := range external {
		if strings.HasPrefix(imported, prefix) && !within(s.dir, []string{owner}) {
			t.Errorf("%s imports %s: only %s may", s.at(spec.Pos()), imported, owner)
		}
	}
}

func TestLayersPureCode(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !within(s.dir, pure) {
			continue
		}
		for _, p := range pure {
			seen[p] = seen[p] || within(s.dir, []string{p})
		}
		for _, spec := range s.ast.Imports {
			if imported, err := strconv.Unquote(spec.Path.Value); err != nil || slices.Contains(impure, imported) {
				t.Errorf("%s imports %s: the package is pure", s.at(spec.Pos()), imported)
			}
		}
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				t.Errorf("%s starts a goroutine: the package is pure", s.at(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && slices.Contains(impureCalls, x.Name+"."+n.Sel.Name) {
					t.Errorf("%s uses %s.%s: the package is pure, time comes in as an argument", s.at(n.Pos()), x.Name, n.Sel.Name)
				}
			}
			return true
		})
	}
	for _, p := range pure {
		if !seen[p] {
			t.Errorf("the list of pure packages names %s, where there is no code", p)
		}
	}
}

func TestLayersForbid(t *testing.T) {
	for _, c := range []struct {
		from, to string
		ok       bool
	}{
		{"gateway/internal/server", "services/transport", true},
		{"gateway", "storaged", false},
		{"services/metadata", "gateway", false},
		{"services/kafka/recordbatch", "services/storage", false},
		{"services/kafka/recordbatch", "services/kafka/errcode", true},
		{"services/storage", "services/kafka/errcode", true},
		{"services/transport", "services/app", false},
		{"gateway", "services/testkit", false},
		{"services/app", "controllerd", true},
		{"services/cmd/chancery", "gateway", false},
		{"services/e2e", "services/app", false},
		{"services/testkit/sim", "storaged/simulation", true},
		{"services/testkit/sim", "storaged", false},
		{"storaged", "storaged/simulation", false},
		{"proto/common/v1", "services/kafka/errcode", false},
	} {
		if got := forbidden(c.from, c.to) == ""; got != c.ok {
			t.Errorf("%s imports %s: allowed %v, want %v", c.from, c.to, got, c.ok)
		}
	}
}
