package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// property is a key with its value and the line on which it begins.
type property struct {
	key, value string
	line       int
}

// parse reads Java's properties syntax: comments begin with # or !, a key ends at the first =, : or blank, a backslash at
// the end of a line goes on with the next one, and \t, \n, \r, \f and \uXXXX are what they are in Java. Text that is not
// UTF-8 is taken for Latin-1, as Java reads all of it.
func parse(data []byte) ([]property, error) {
	text := string(data)
	if !utf8.ValidString(text) {
		runes := make([]rune, len(data))
		for i, b := range data {
			runes[i] = rune(b)
		}
		text = string(runes)
	}
	var properties []property
	for _, l := range logicalLines(text) {
		rawKey, rawValue := splitProperty(l.text)
		key, err := unescape(rawKey)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", l.number, err)
		}
		value, err := unescape(rawValue)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", l.number, key, err)
		}
		properties = append(properties, property{key, value, l.number})
	}
	return properties, nil
}

// logicalLine is what stands between two line ends that count, without blanks at its beginning.
type logicalLine struct {
	text   string
	number int
}

const blanks = " \t\f"

// logicalLines joins lines that end in a backslash, and leaves out empty lines and comments.
func logicalLines(text string) []logicalLine {
	text = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(text)
	var lines []logicalLine
	var joined *logicalLine
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimLeft(line, blanks)
		if joined == nil {
			if line == "" || line[0] == '#' || line[0] == '!' {
				continue
			}
			joined = &logicalLine{number: i + 1}
		}
		backslashes := len(line) - len(strings.TrimRight(line, `\`))
		if backslashes%2 == 1 {
			joined.text += line[:len(line)-1]
			continue
		}
		joined.text += line
		lines = append(lines, *joined)
		joined = nil
	}
	if joined != nil {
		lines = append(lines, *joined)
	}
	return lines
}

// splitProperty finds the end of the key: the first =, : or blank that has no backslash before it.
func splitProperty(line string) (key, value string) {
	end := len(line)
	for i := 0; i < len(line); i++ {
		if line[i] == '\\' {
			i++
			continue
		}
		if strings.IndexByte("=:"+blanks, line[i]) >= 0 {
			end = i
			break
		}
	}
	rest := strings.TrimLeft(line[end:], blanks)
	if rest != "" && (rest[0] == '=' || rest[0] == ':') {
		rest = strings.TrimLeft(rest[1:], blanks)
	}
	return line[:end], rest
}

func unescape(s string) (string, error) {
	if !strings.Contains(s, `\`) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			if s[i] != '\\' {
				b.WriteByte(s[i])
			}
			continue
		}
		i++
		switch s[i] {
		case 't':
			b.WriteByte('\t')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 'f':
			b.WriteByte('\f')
		case 'u':
			r, n, err := unescapeUnicode(s[i-1:])
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
			i += n - 2
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}

// unescapeUnicode reads the \uXXXX that s begins with, two of them for a character outside the basic plane, and says how
// long they are.
func unescapeUnicode(s string) (r rune, length int, err error) {
	const one = len(`\uXXXX`)
	unit := func(s string) (rune, bool) {
		if len(s) < one || s[:2] != `\u` {
			return 0, false
		}
		n, err := strconv.ParseUint(s[2:one], 16, 16)
		return rune(n), err == nil
	}
	first, ok := unit(s)
	if !ok {
		return 0, 0, fmt.Errorf(`%q: want four hexadecimal digits after \u`, s[:min(len(s), one)])
	}
	if utf16.IsSurrogate(first) {
		if second, ok := unit(s[one:]); ok {
			if r := utf16.DecodeRune(first, second); r != utf8.RuneError {
				return r, 2 * one, nil
			}
		}
	}
	return first, one, nil
}
