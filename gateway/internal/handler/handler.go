package handler

import (
	"context"
	"log/slog"
	"time"

	"google.golang.org/grpc/mem"

	"chancery/gateway/internal/pacer"
	"chancery/gateway/internal/routing"
	"chancery/gateway/internal/session"
	"chancery/gateway/internal/wire"
	commonv1 "chancery/proto/common/v1"
	tieringv1 "chancery/proto/tiering/v1"
	"chancery/services/clients/controllerclient"
	"chancery/services/kafka/configdef"
	"chancery/services/metadata"
	"chancery/services/storage"
	"chancery/services/storagerpc"
)

// Anonymous is the principal of a connection without authentication.
const Anonymous = "User:ANONYMOUS"

// UnknownNode is the node of a connection whose client has not said which node it means.
const UnknownNode int32 = -1

// Conn is what is known of a client's connection. Only requests that run alone on their connection change it.
type Conn struct {
	// Listener is the name of the listener that the client came in on.
	Listener string
	// Host is the client's address as Kafka shows it: "/127.0.0.1".
	Host string
	// Principal is who the client is: "User:alice".
	Principal string
	// NodeID is the node that the client believes to talk to: from its ApiVersions request (KIP-1242) or the port that it
	// dialled; UnknownNode when neither tells.
	NodeID          int32
	SoftwareName    string
	SoftwareVersion string

	produces produceOrder
}

// Request is one request of a client.
type Request struct {
	Key           int16
	Version       int16
	CorrelationID int32
	// ClientID is nil when the header had null.
	ClientID *string
	Conn     *Conn
	// Arrived is when the frame was complete.
	Arrived time.Time
	// Body is the request without its header. It stays valid as long as anybody holds it, but for Produce: there it is a
	// part of Frame, which the request owns.
	Body []byte
	// Frame and BodyAt are set for Produce: the buffer that holds the frame, and where the body begins in it.
	Frame  mem.Buffer
	BodyAt int
	// Waited is the part of the time that the request spent waiting for others: for data, acknowledgements, a rebalance.
	// Handlers add to it; it goes into the metrics only.
	Waited time.Duration
}

// clientID is the client id as a string; null becomes empty.
func (r *Request) clientID() string {
	if r.ClientID == nil {
		return ""
	}
	return *r.ClientID
}

// Order says which requests of one connection may run at the same time.
type Order int8

const (
	// Alone is for a request that begins when all before it on the connection have ended, and ends before the next begins.
	// So a connection looks as if it did one thing after the other, which clients count on.
	Alone Order = iota
	// Produces run beside each other; their appends begin in the order of the requests.
	Produces
	// Fetches without a session run beside each other.
	Fetches
)

// API is one row of the table of APIs.
type API struct {
	Key  int16
	Name string
	// Min to Max are the versions that are served; Advertised is the lowest that ApiVersions tells.
	Min, Max   int16
	Advertised int16
	// FlexibleFrom is the first version with compact types, whose header has tagged fields; neverFlexible for none.
	FlexibleFrom int16
	// LapsesWithClient is for an API whose late effect harms: when it was kept waiting behind another request until its client
	// gave up and closed the connection, it is not carried out. A group's offset could go back otherwise, since the client has
	// committed elsewhere by then.
	LapsesWithClient bool
	// Order is nil for an API that runs alone.
	Order func(r *Request) Order
	// EndsOnDrain says that the requests wait for something that need not come: they end, with what is there, when the
	// gateway is about to leave.
	EndsOnDrain bool
	// Handle answers a request. A nil message without an error means that there is no answer.
	Handle func(h *Handlers, ctx context.Context, r *Request) (*wire.Message, error)
	// Several answers requests that a client has pipelined, of one version, carried out in their order. It may be nil. With an error
	// the messages are those of the requests before the one that it is about.
	Several func(h *Handlers, ctx context.Context, rs []*Request) ([]*wire.Message, error)
	// Start is instead of Handle for an API that does not block: done is called exactly once, from any goroutine.
	Start func(h *Handlers, ctx context.Context, r *Request, done func(*wire.Message, error))
}

// neverFlexible is the FlexibleFrom of an API without flexible versions.
const neverFlexible int16 = 32767

// Flexible says whether requests of a version have compact types and a header with tagged fields.
func (a *API) Flexible(version int16) bool { return version >= a.FlexibleFrom }

// Serves says whether a version is served.
func (a *API) Serves(version int16) bool { return version >= a.Min && version <= a.Max }

// Controller takes requests to the active controller. An error carries a Kafka error code where there is one.
type Controller interface {
	Handle(ctx context.Context, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
}

// Coordinator takes requests to the instances that own coordinator shards.
type Coordinator interface {
	// Handle asks the owner of one shard.
	Handle(ctx context.Context, kind metadata.ShardKind, shard int32, e *commonv1.Envelope) (*commonv1.EnvelopeReply, error)
	// HandleAll asks every instance that owns a shard of the kind.
	HandleAll(ctx context.Context, kind metadata.ShardKind, e *commonv1.Envelope) ([]*commonv1.EnvelopeReply, error)
}

// Tiering takes reads to the tiering instances that own the partitions' remote segments; *tieringclient.Client is one.
type Tiering interface {
	Read(ctx context.Context, req *tieringv1.ReadRequest) (*storagerpc.TierRead, error)
	FindOffset(ctx context.Context, req *tieringv1.FindOffsetRequest) (*tieringv1.FindOffsetResponse, error)
}

// Config is what handlers need to know of the gateway's settings.
type Config struct {
	// Node is the gateway's configuration by Kafka's names; what topics and groups have by default comes from it too.
	Node *configdef.Node
	// AutoCreateTopics lets Metadata make topics that are asked for (auto.create.topics.enable).
	AutoCreateTopics bool
	// FetchMaxBytes bounds one fetch response (fetch.max.bytes).
	FetchMaxBytes int32
	// AnswerBytes bounds, softly, the fetched records in memory that clients have not read yet.
	AnswerBytes int64
	// MaxRequestPartitionSizeLimit bounds the partitions in one answer to DescribeTopicPartitions.
	MaxRequestPartitionSizeLimit int32
	// RequestTimeout bounds requests to other services that carry no time-out of their own (request.timeout.ms).
	RequestTimeout time.Duration
}

// NewConfig takes the settings out of a configuration.
func NewConfig(node *configdef.Node) Config {
	return Config{
		Node:                         node,
		AutoCreateTopics:             node.Bool("auto.create.topics.enable"),
		FetchMaxBytes:                int32(node.Int("fetch.max.bytes")),
		MaxRequestPartitionSizeLimit: int32(node.Int("max.request.partition.size.limit")),
		RequestTimeout:               node.Duration("request.timeout.ms"),
	}
}

// Deps are what handlers work with.
type Deps struct {
	// Image is the newest metadata image that is known here.
	Image func() metadata.Reader
	// Await waits until the image is at least at an offset.
	Await func(ctx context.Context, offset int64) error
	// Storage finds the storage node of an id.
	Storage     func(nodeID int32) (storage.Node, error)
	Controller  Controller
	Coordinator Coordinator
	Tiering     Tiering
	// Pacer lets reads from the remote tier yield to producers.
	Pacer *pacer.Pacer
	// Addresses gives each node the address of a gateway.
	Addresses *routing.Addresses
	Sessions  *session.Cache
	// Messages are the buffers of responses.
	Messages *wire.Pool
	Now      func() time.Time
	Logger   *slog.Logger
}

// Handlers answers requests. Its methods may be called from any goroutine.
type Handlers struct {
	config Config
	Deps
	apis        []API
	byKey       map[int16]*API
	creating    topicCreation
	producerIDs *controllerclient.ProducerIDs
	produces    producePool
	fetched     fetchMemory
}

// New makes the handlers of a gateway.
func New(config Config, deps Deps) *Handlers {
	h := &Handlers{config: config, Deps: deps, apis: table()}
	h.producerIDs = controllerclient.NewProducerIDs(deps.Controller.Handle, config.RequestTimeout)
	h.fetched.limit = config.AnswerBytes
	h.creating.inFlight = make(map[string]bool)
	h.byKey = make(map[int16]*API, len(h.apis))
	for i := range h.apis {
		h.byKey[h.apis[i].Key] = &h.apis[i]
	}
	return h
}

// API finds the row of an API key; nil when it is not served.
func (h *Handlers) API(key int16) *API { return h.byKey[key] }

// APIs are all rows, in the order of their keys.
func (h *Handlers) APIs() []API { return h.apis }

// envelope wraps a request for the service that answers it.
func (h *Handlers) envelope(r *Request, body []byte) *commonv1.Envelope {
	return &commonv1.Envelope{
		ApiKey:         int32(r.Key),
		ApiVersion:     int32(r.Version),
		ClientId:       r.ClientID,
		Principal:      r.Conn.Principal,
		ClientHost:     r.Conn.Host,
		Listener:       r.Conn.Listener,
		Body:           body,
		MetadataOffset: h.Image().Offset(),
		Trusted:        true,
	}
}
