package configdef

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"chancery/services/kafka/errcode"
)

// Validator checks a parsed value of a config beyond its type.
type Validator func(d *Def, v Value) error

// number is the value of any numeric type, for comparisons.
func (d *Def) number(v Value) float64 {
	if d.Type == Double {
		return v.Double
	}
	return float64(v.Int)
}

func (d *Def) show(v Value) string {
	if s := d.Format(v); s != nil {
		return *s
	}
	return "null"
}

func atLeast(low float64) Validator {
	return func(d *Def, v Value) error {
		if d.number(v) < low {
			return invalid(d.Name, d.show(v), "Value must be at least "+formatBound(low))
		}
		return nil
	}
}

func between(low, high float64) Validator {
	atLeastLow := atLeast(low)
	return func(d *Def, v Value) error {
		if err := atLeastLow(d, v); err != nil {
			return err
		}
		if d.number(v) > high {
			return invalid(d.Name, d.show(v), "Value must be no more than "+formatBound(high))
		}
		return nil
	}
}

func formatBound(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// gzipLevel allows -1 for the default beside the levels.
func gzipLevel(d *Def, v Value) error {
	if v.Int == -1 || v.Int >= 1 && v.Int <= 9 {
		return nil
	}
	return invalid(d.Name, d.show(v), "Value must be between 1 and 9 or equal to -1")
}

func oneOf(values ...string) Validator {
	return func(d *Def, v Value) error {
		if !slices.Contains(values, v.Text) {
			return invalid(d.Name, d.show(v), "String must be one of: "+strings.Join(values, ", "))
		}
		return nil
	}
}

// oneOfFold ignores upper and lower case.
func oneOfFold(values ...string) Validator {
	return func(d *Def, v Value) error {
		if !slices.ContainsFunc(values, func(s string) bool { return strings.EqualFold(s, v.Text) }) {
			return invalid(d.Name, d.show(v), "String must be one of (case insensitive): "+strings.Join(values, ", "))
		}
		return nil
	}
}

func nonEmpty(d *Def, v Value) error {
	if v.Text == "" {
		return invalid(d.Name, d.show(v), "String must be non-empty")
	}
	return nil
}

// anyList refuses empty entries.
func anyList(d *Def, v Value) error {
	if slices.Contains(v.List, "") {
		return errcode.InvalidConfig.Errorf("Configuration '%s' values must not be empty.", d.Name)
	}
	return nil
}

func nonEmptyList(d *Def, v Value) error {
	if len(v.List) == 0 {
		return errcode.InvalidConfig.Errorf("Configuration '%s' must not be empty. Valid values include: any non-empty value", d.Name)
	}
	return anyList(d, v)
}

func listOf(values ...string) Validator {
	return func(d *Def, v Value) error {
		if err := anyList(d, v); err != nil {
			return err
		}
		for _, s := range v.List {
			if !slices.Contains(values, s) {
				return invalid(d.Name, s, "String must be one of: "+strings.Join(values, ", "))
			}
		}
		return nil
	}
}

func nonEmptyListOf(values ...string) Validator {
	of := listOf(values...)
	return func(d *Def, v Value) error {
		if len(v.List) == 0 {
			return errcode.InvalidConfig.Errorf("Configuration '%s' must not be empty. Valid values include: [%s]",
				d.Name, strings.Join(values, ", "))
		}
		return of(d, v)
	}
}

var throttledReplica = regexp.MustCompile(`^[0-9]+:[0-9]+$`)

// throttledReplicas is a list of partition:broker, or * for all replicas.
func throttledReplicas(d *Def, v Value) error {
	if len(v.List) == 0 || len(v.List) == 1 && v.List[0] == "*" {
		return nil
	}
	for _, s := range v.List {
		if !throttledReplica.MatchString(s) {
			return invalid(d.Name, d.show(v), d.Name+" must be the literal '*' or a list of replicas in the following format: "+
				"[partitionId]:[brokerId],[partitionId]:[brokerId],...")
		}
	}
	return nil
}

var isoDuration = regexp.MustCompile(`(?i)^([-+]?)P(?:([-+]?[0-9]+)D)?(T(?:([-+]?[0-9]+)H)?(?:([-+]?[0-9]+)M)?(?:([-+]?[0-9]+)(?:[.,]([0-9]{0,9}))?S)?)?$`)

// offsetReset is the start offset of a share group: earliest, latest, or by_duration with an ISO 8601 duration that is
// not negative.
func offsetReset(d *Def, v Value) error {
	switch v.Text {
	case "earliest", "latest":
		return nil
	}
	const prefix = "by_duration:"
	if strings.HasPrefix(v.Text, prefix) {
		m := isoDuration.FindStringSubmatch(v.Text[len(prefix):])
		if m != nil && (m[2] != "" || m[4]+m[5]+m[6] != "") && m[1] != "-" && !strings.Contains(m[0], "-") &&
			(m[3] == "" || len(m[3]) > 1) {
			return nil
		}
	}
	return invalid(d.Name, d.show(v), "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.")
}
