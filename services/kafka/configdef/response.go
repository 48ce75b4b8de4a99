package configdef

import "github.com/twmb/franz-go/pkg/kmsg"

// Response gives entries as DescribeConfigs tells them: synonyms and documentation only where they are asked for.
func Response(req *kmsg.DescribeConfigsRequest, entries []Entry) []kmsg.DescribeConfigsResponseResourceConfig {
	out := make([]kmsg.DescribeConfigsResponseResourceConfig, 0, len(entries))
	for i := range entries {
		e := &entries[i]
		c := kmsg.NewDescribeConfigsResponseResourceConfig()
		c.Name, c.Value, c.ReadOnly, c.IsSensitive = e.Name, e.Value, e.ReadOnly, e.Sensitive
		c.Source, c.ConfigType = kmsg.ConfigSource(e.Source), kmsg.ConfigType(e.Type)
		if req.IncludeDocumentation && e.Doc != "" {
			c.Documentation = &e.Doc
		}
		if req.IncludeSynonyms {
			for _, s := range e.Synonyms {
				synonym := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
				synonym.Name, synonym.Value, synonym.Source = s.Name, s.Value, kmsg.ConfigSource(s.Source)
				c.ConfigSynonyms = append(c.ConfigSynonyms, synonym)
			}
		}
		out = append(out, c)
	}
	return out
}
