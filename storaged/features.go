package storaged

import "chancery/services/metadata"

// supportedFeatures are the feature levels of Kafka 4.4.
func supportedFeatures() map[string]metadata.VersionRange {
	return map[string]metadata.VersionRange{
		"metadata.version":                 {Min: 7, Max: 33},
		"kraft.version":                    {Min: 0, Max: 1},
		"transaction.version":              {Min: 0, Max: 2},
		"group.version":                    {Min: 0, Max: 1},
		"eligible.leader.replicas.version": {Min: 0, Max: 1},
		"share.version":                    {Min: 0, Max: 2},
		"streams.version":                  {Min: 0, Max: 1},
	}
}
