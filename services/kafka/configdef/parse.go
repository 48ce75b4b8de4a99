package configdef

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"chancery/services/kafka/errcode"
)

// invalid makes the error of a value that a config refuses.
func invalid(name, value, why string) error {
	return errcode.InvalidConfig.Errorf("Invalid value %s for configuration %s: %s", value, name, why)
}

// Parse reads a value as the config's type and checks it.
func (d *Def) Parse(text string) (Value, error) {
	v, err := d.parseType(text)
	if err != nil {
		return v, err
	}
	if d.Type == List && d.Valid != nil {
		// Kafka drops repeated entries of the lists that it checks.
		v.List = unique(v.List)
	}
	if d.Valid != nil {
		if err := d.Valid(d, v); err != nil {
			return v, err
		}
	}
	return v, nil
}

func unique(list []string) []string {
	var out []string
	for _, s := range list {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

func (d *Def) parseType(text string) (Value, error) {
	trimmed := trim(text)
	switch d.Type {
	case Boolean:
		switch {
		case strings.EqualFold(trimmed, "true"):
			return Value{Bool: true}, nil
		case strings.EqualFold(trimmed, "false"):
			return Value{}, nil
		}
		return Value{}, invalid(d.Name, text, "Expected value to be either true or false")
	case Int:
		return d.parseInt(text, trimmed, 32)
	case Short:
		return d.parseInt(text, trimmed, 16)
	case Long:
		return d.parseInt(text, trimmed, 64)
	case Double:
		f, ok := parseDouble(trimmed)
		if !ok {
			return Value{}, invalid(d.Name, text, "Not a number of type DOUBLE")
		}
		return Value{Double: f}, nil
	case List:
		return Value{List: splitList(trimmed)}, nil
	case String, Class, Password, Unknown:
	}
	return Value{Text: trimmed}, nil
}

// trim cuts what Java's String.trim cuts: everything up to and including the space, at both ends.
func trim(s string) string { return strings.TrimFunc(s, func(r rune) bool { return r <= ' ' }) }

// SplitList gives the entries of a list, which is written with commas.
func SplitList(text string) []string { return splitList(trim(text)) }

func splitList(trimmed string) []string {
	if trimmed == "" {
		return nil
	}
	parts := strings.Split(trimmed, ",")
	for i, p := range parts {
		parts[i] = strings.TrimSpace(p)
	}
	return parts
}

func (d *Def) parseInt(text, trimmed string, bits int) (Value, error) {
	n, err := strconv.ParseInt(trimmed, 10, bits)
	if err != nil {
		return Value{}, invalid(d.Name, text, "Not a number of type "+d.Type.String())
	}
	return Value{Int: n}, nil
}

// parseDouble reads a number as Java does: with an optional d or f at its end, and NaN and Infinity in this spelling.
func parseDouble(s string) (float64, bool) {
	bare := strings.TrimLeft(s, "+-")
	switch {
	case bare == "NaN":
		return math.NaN(), true
	case bare == "Infinity" && s[0] == '-':
		return math.Inf(-1), true
	case bare == "Infinity":
		return math.Inf(1), true
	case bare == "" || strings.ContainsAny(bare[:1], "iInN"):
		return 0, false
	}
	if hex := strings.HasPrefix(bare, "0x") || strings.HasPrefix(bare, "0X"); !hex || strings.ContainsAny(s, "pP") {
		if last := s[len(s)-1]; strings.IndexByte("dDfF", last) >= 0 {
			s = s[:len(s)-1]
		}
	}
	if strings.Contains(s, "_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, 64)
	return f, err == nil || math.IsInf(f, 0)
}

// Format writes a value as Kafka shows it; nil for null.
func (d *Def) Format(v Value) *string {
	if v.Null {
		return nil
	}
	var s string
	switch d.Type {
	case Boolean:
		s = strconv.FormatBool(v.Bool)
	case Int, Short, Long:
		s = strconv.FormatInt(v.Int, 10)
	case Double:
		s = formatDouble(v.Double)
	case List:
		s = strings.Join(v.List, ",")
	case String, Class, Password, Unknown:
		s = v.Text
	}
	return &s
}

// formatDouble writes a number as Java does: 0.5, 1.0E7, 1.7976931348623157E308.
func formatDouble(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	if abs := math.Abs(f); abs == 0 || abs >= 1e-3 && abs < 1e7 {
		s := strconv.FormatFloat(f, 'f', -1, 64)
		if !strings.Contains(s, ".") {
			s += ".0"
		}
		return s
	}
	mantissa, exponent, _ := strings.Cut(strconv.FormatFloat(f, 'E', -1, 64), "E")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	n, _ := strconv.Atoi(exponent)
	return mantissa + "E" + strconv.Itoa(n)
}
