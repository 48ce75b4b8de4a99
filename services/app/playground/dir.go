package playground

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// lockDir makes the folder and keeps other playgrounds out of it for as long as this process lives.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "playground.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("a playground runs in %s already: give another folder, or end it with: chancery playground down --data %s", dir, dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}

// encodeProperties writes a properties file, sorted by key.
func encodeProperties(properties map[string]string) []byte {
	keys := make([]string, 0, len(properties))
	for k := range properties {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	key := strings.NewReplacer(`\`, `\\`, " ", `\ `, ":", `\:`, "=", `\=`, "#", `\#`, "!", `\!`, "\n", `\n`, "\r", `\r`, "\t", `\t`)
	value := strings.NewReplacer(`\`, `\\`, "\n", `\n`, "\r", `\r`, "\t", `\t`)
	var b bytes.Buffer
	b.WriteString("# Written by the playground at each start; what is changed here is lost.\n")
	for _, k := range keys {
		v := value.Replace(properties[k])
		if strings.HasPrefix(v, " ") {
			v = `\` + v // Leading blanks would be skipped.
		}
		b.WriteString(key.Replace(k) + "=" + v + "\n")
	}
	return b.Bytes()
}
