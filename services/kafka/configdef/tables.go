package configdef

import "slices"

// brokerTable are the configs of brokers, Kafka's and our own, sorted by name.
var brokerTable = slices.Concat(brokerConfigsAToK, brokerConfigsLToR, brokerConfigsSToZ)
