// Receives traces by OTLP over HTTP, as the OpenTelemetry Collector reads them, and prints each span as a line of JSON.
package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"

	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
)

func main() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	lines := json.NewEncoder(os.Stdout)
	lines.Encode(map[string]any{"address": listener.Addr().String()})
	http.HandleFunc("POST /v1/traces", func(answer http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		traces := ptraceotlp.NewExportRequest()
		if err == nil {
			err = traces.UnmarshalJSON(body)
		}
		if err != nil || request.Header.Get("Content-Type") != "application/json" {
			http.Error(answer, "no OTLP", http.StatusBadRequest)
			return
		}
		for _, resource := range traces.Traces().ResourceSpans().All() {
			for _, scope := range resource.ScopeSpans().All() {
				for _, span := range scope.Spans().All() {
					lines.Encode(map[string]any{
						"resource": resource.Resource().Attributes().AsRaw(), "trace": span.TraceID().String(),
						"span": span.SpanID().String(), "parent": span.ParentSpanID().String(), "name": span.Name(),
						"begin": span.StartTimestamp().AsTime(), "end": span.EndTimestamp().AsTime(),
						"attributes": span.Attributes().AsRaw(), "status": span.Status().Code().String(), "events": span.Events().Len(),
					})
				}
			}
		}
		answer.Header().Set("Content-Type", "application/json")
		answer.Write([]byte("{}"))
	})
	panic(http.Serve(listener, nil))
}
