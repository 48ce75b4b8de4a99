// Package s3 starts object stores for tests: versitygw, a real S3 server over a directory, behind a proxy that makes faults
// (Proxy), and a store in memory with the speed of a far one (Simulated).
//
// It owns those processes and servers, which end with the test. It must never know what is stored.
package s3

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"chancery/services/testkit/ports"
)

// versitygwVersion is the one that the Makefile installs, too.
const versitygwVersion = "v1.8.0"

// The account of the servers.
const (
	AccessKey = "testkey"
	SecretKey = "testsecret123"
	Region    = "us-east-1"
)

// Server is a running S3 server.
type Server struct {
	// Endpoint is its URL.
	Endpoint string
	// CAFile has its certificate; empty without TLS.
	CAFile string
	// Root is the directory with a folder for each bucket and in it a file for each object.
	Root string
}

// installOnce installs the server at most once in a test process.
var installOnce = sync.OnceValues(install)

// install finds versitygw in the module's .bin, where the Makefile puts it, or has the Makefile do so.
func install() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	name := filepath.Join(root, ".bin", "versitygw-"+versitygwVersion)
	if _, err := os.Stat(name); err == nil {
		return name, nil
	}
	if out, err := exec.Command("make", "-C", root, "s3-server").CombinedOutput(); err != nil {
		return "", fmt.Errorf("make s3-server: %w\n%s", err, out)
	}
	return name, nil
}

// Start starts versitygw over an empty directory. The test is skipped when it is not installed and cannot be.
func Start(t testing.TB, withTLS bool) *Server {
	t.Helper()
	binary, err := installOnce()
	if err != nil {
		t.Skipf("there is no S3 server to test with: %v", err)
	}
	dir := t.TempDir()
	s := &Server{Root: filepath.Join(dir, "root")}
	if err := os.Mkdir(s.Root, 0o755); err != nil {
		t.Fatal(err)
	}
	args := []string{"--access", AccessKey, "--secret", SecretKey, "--region", Region, "--keep-alive", "--quiet"}
	scheme := "http://"
	if withTLS {
		scheme = "https://"
		var key string
		s.CAFile, key = certificate(t, dir)
		args = append(args, "--cert", s.CAFile, "--key", key)
	}
	addresses, err := ports.FreeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	s.Endpoint = scheme + addresses[0]
	if err := s.run(t, binary, append(args, "--port", addresses[0], "posix", s.Root), addresses[0]); err != nil {
		t.Fatalf("versitygw: %v", err)
	}
	return s
}

// run starts the process and waits until it answers.
func (s *Server) run(t testing.TB, binary string, args []string, address string) error {
	var log bytes.Buffer
	cmd := exec.Command(binary, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	var exit error
	go func() {
		defer close(exited)
		exit = cmd.Wait()
	}()
	stop := func() {
		if cmd.Process.Kill() == nil {
			<-exited
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-exited:
			return fmt.Errorf("%w: %s", errors.Join(errors.New("it ended"), exit), log.String())
		case <-ctx.Done():
			stop()
			return fmt.Errorf("no answer in time: %s", log.String())
		case <-tick.C:
		}
		if answers(ctx, address) {
			t.Cleanup(stop)
			return nil
		}
	}
}

// answers says whether somebody listens.
func answers(ctx context.Context, address string) bool {
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// certificate makes a certificate for localhost that signs itself, and its key.
func certificate(t testing.TB, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "s3 for tests"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for name, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// CreateBucket makes a bucket, as an administrator would with a directory.
func (s *Server) CreateBucket(t testing.TB, bucket string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(s.Root, bucket), 0o755); err != nil {
		t.Fatal(err)
	}
}

// File is the file of an object.
func (s *Server) File(bucket, key string) string {
	return filepath.Join(s.Root, bucket, filepath.FromSlash(key))
}
