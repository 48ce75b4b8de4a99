package node

import (
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"chancery/services/kafka/configdef"
	"chancery/services/kafka/errcode"
	"chancery/services/metadata"
)

// DescribeConfigs (32) for this node's broker and broker-logger resources, and IncrementalAlterConfigs (44) for its
// loggers, whose levels live in memory only. There is one logger, the root one.

// rootLogger is the name of the node's logger.
const rootLogger = "root"

func (n *Node) describeConfigs(req *kmsg.DescribeConfigsRequest) *kmsg.DescribeConfigsResponse {
	resp := kmsg.NewPtrDescribeConfigsResponse()
	for i := range req.Resources {
		res := &req.Resources[i]
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = res.ResourceType, res.ResourceName
		configs, err := n.describeResource(req, res)
		text := ""
		if err != nil {
			text = errcode.Text(err)
			out.ErrorCode = int16(errcode.Of(err))
		}
		out.ErrorMessage, out.Configs = &text, configs
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func (n *Node) describeResource(req *kmsg.DescribeConfigsRequest, res *kmsg.DescribeConfigsRequestResource) ([]kmsg.DescribeConfigsResponseResourceConfig, error) {
	switch metadata.ResourceType(res.ResourceType) {
	case metadata.ResourceBroker:
		layers := n.brokerLayers()
		if res.ResourceName == "" {
			return configdef.Response(req, layers.DescribeClusterDefault(res.ConfigNames)), nil
		}
		if err := n.checkID(res.ResourceName, ", expected %d or empty string, but received %s"); err != nil {
			return nil, err
		}
		return configdef.Response(req, layers.Describe(configdef.BrokerResource, res.ConfigNames)), nil
	case metadata.ResourceBrokerLogger:
		if err := n.checkLoggerID(res.ResourceName); err != nil {
			return nil, err
		}
		return n.describeLoggers(req, res.ConfigNames), nil
	default:
		return nil, errcode.InvalidRequest.Errorf("Unsupported resource type: %d", res.ResourceType)
	}
}

// brokerLayers are where this node's own settings come from.
func (n *Node) brokerLayers() configdef.Layers {
	image := n.applied.load()
	return configdef.Layers{
		Static:         n.o.Static.Layers(nil).Static,
		ClusterDefault: image.Config(metadata.ResourceBroker, ""),
		Broker:         image.Config(metadata.ResourceBroker, strconv.Itoa(int(n.o.ID))),
	}
}

func (n *Node) checkID(name, complaint string) error {
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil {
		return errcode.InvalidRequest.Errorf("Node id must be an integer, but it is: %s", name)
	}
	if int32(id) != n.o.ID {
		return errcode.InvalidRequest.Errorf("Unexpected broker id"+complaint, n.o.ID, name)
	}
	return nil
}

func (n *Node) checkLoggerID(name string) error {
	if name == "" {
		return errcode.InvalidRequest.Errorf("Broker id must not be empty")
	}
	return n.checkID(name, ", expected %d but received %s")
}

func (n *Node) describeLoggers(req *kmsg.DescribeConfigsRequest, names []string) []kmsg.DescribeConfigsResponseResourceConfig {
	if n.o.LogLevel == nil || len(names) > 0 && !slices.Contains(names, rootLogger) {
		return nil
	}
	c := kmsg.NewDescribeConfigsResponseResourceConfig()
	level := levelName(n.o.LogLevel.Level())
	c.Name, c.Value, c.Source = rootLogger, &level, kmsg.ConfigSource(configdef.DynamicBrokerLogger)
	// Loggers have a text also where none was asked for, as in Kafka.
	doc := ""
	if req.IncludeDocumentation {
		doc = "The least level of what is logged: TRACE, DEBUG, INFO, WARN or ERROR."
	}
	c.Documentation = &doc
	return []kmsg.DescribeConfigsResponseResourceConfig{c}
}

// levelName is a level by Kafka's names.
func levelName(l slog.Level) string {
	switch {
	case l < slog.LevelDebug:
		return "TRACE"
	case l < slog.LevelInfo:
		return "DEBUG"
	case l < slog.LevelWarn:
		return "INFO"
	case l < slog.LevelError:
		return "WARN"
	}
	return "ERROR"
}

// levelOf reads a level by Kafka's names.
func levelOf(name string) (slog.Level, bool) {
	switch strings.ToUpper(name) {
	case "TRACE":
		return slog.LevelDebug - 4, true
	case "DEBUG":
		return slog.LevelDebug, true
	case "INFO":
		return slog.LevelInfo, true
	case "WARN":
		return slog.LevelWarn, true
	case "ERROR", "FATAL":
		return slog.LevelError, true
	}
	return 0, false
}

func (n *Node) alterLoggers(req *kmsg.IncrementalAlterConfigsRequest) *kmsg.IncrementalAlterConfigsResponse {
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	for i := range req.Resources {
		res := &req.Resources[i]
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = res.ResourceType, res.ResourceName
		if err := n.alterLogger(res, req.ValidateOnly); err != nil {
			text := errcode.Text(err)
			out.ErrorCode, out.ErrorMessage = int16(errcode.Of(err)), &text
		}
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// alterLogger checks all changes of a resource before it makes the first.
func (n *Node) alterLogger(res *kmsg.IncrementalAlterConfigsRequestResource, validateOnly bool) error {
	if metadata.ResourceType(res.ResourceType) != metadata.ResourceBrokerLogger {
		return errcode.InvalidRequest.Errorf("Unsupported resource type: %d", res.ResourceType)
	}
	if err := n.checkLoggerID(res.ResourceName); err != nil {
		return err
	}
	level, change := slog.LevelInfo, false
	for _, c := range res.Configs {
		if c.Name != rootLogger || n.o.LogLevel == nil {
			return errcode.InvalidConfig.Errorf("Logger %s does not exist!", c.Name)
		}
		switch configdef.Op(c.Op) {
		case configdef.OpSet:
			var ok bool
			if c.Value == nil {
				return errcode.InvalidRequest.Errorf("Null value not supported for : %s", c.Name)
			}
			if level, ok = levelOf(*c.Value); !ok {
				return errcode.InvalidConfig.Errorf("Cannot set the log level of %s to %s as it is not a supported log level.", c.Name, *c.Value)
			}
			change = true
		case configdef.OpDelete:
			return errcode.InvalidRequest.Errorf("Removing the log level of the %s logger is not allowed", rootLogger)
		default:
			return errcode.InvalidRequest.Errorf("Logger level configuration only supports SET and DELETE operations.")
		}
	}
	if change && !validateOnly {
		n.o.LogLevel.Set(level)
	}
	return nil
}
