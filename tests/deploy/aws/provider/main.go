// A provider that knows the schema of the AWS provider's resources, and plans what it is told: enough for `tofu validate` and
// `tofu plan`, without AWS. The AWS provider itself can't be had as a Go module. The schema is made by provider_schema.py, and
// read from the file next to the program.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

type attribute struct {
	Type     json.RawMessage
	Required bool
	Optional bool
	Computed bool
	// What AWS would give, if it is not given; {name} is the resource's name.
	Value string
}

type block struct {
	Attributes map[string]attribute
	Blocks     map[string]struct {
		Most  int64
		Block block
	}
}

type schemas struct {
	Resources   map[string]block
	DataSources map[string]block
}

func (b block) schema() (*tfprotov6.SchemaBlock, error) {
	made := &tfprotov6.SchemaBlock{}
	for name, a := range b.Attributes {
		kind, err := tftypes.ParseJSONType(a.Type) //nolint:staticcheck // there is no other way to read a type
		if err != nil {
			return nil, err
		}
		made.Attributes = append(made.Attributes, &tfprotov6.SchemaAttribute{
			Name: name, Type: kind, Required: a.Required, Optional: a.Optional, Computed: a.Computed,
		})
	}
	for name, nested := range b.Blocks {
		inner, err := nested.Block.schema()
		if err != nil {
			return nil, err
		}
		made.BlockTypes = append(made.BlockTypes, &tfprotov6.SchemaNestedBlock{
			TypeName: name, Nesting: tfprotov6.SchemaNestedBlockNestingModeList, MaxItems: nested.Most, Block: inner,
		})
	}
	return made, nil
}

func all(blocks map[string]block) (map[string]*tfprotov6.Schema, error) {
	made := map[string]*tfprotov6.Schema{}
	for name, b := range blocks {
		inner, err := b.schema()
		if err != nil {
			return nil, err
		}
		made[name] = &tfprotov6.Schema{Block: inner}
	}
	return made, nil
}

// What is not implemented is not called by validation, nor by the plan of something new.
type server struct {
	tfprotov6.ProviderServer
	schemas schemas
}

func (s *server) GetProviderSchema(context.Context, *tfprotov6.GetProviderSchemaRequest) (*tfprotov6.GetProviderSchemaResponse, error) {
	resources, err := all(s.schemas.Resources)
	if err != nil {
		return nil, err
	}
	data, err := all(s.schemas.DataSources)
	if err != nil {
		return nil, err
	}
	return &tfprotov6.GetProviderSchemaResponse{
		Provider:          &tfprotov6.Schema{Block: &tfprotov6.SchemaBlock{}},
		ResourceSchemas:   resources,
		DataSourceSchemas: data,
	}, nil
}

func (s *server) ValidateProviderConfig(context.Context, *tfprotov6.ValidateProviderConfigRequest) (*tfprotov6.ValidateProviderConfigResponse, error) {
	return &tfprotov6.ValidateProviderConfigResponse{}, nil
}

func (s *server) ValidateResourceConfig(context.Context, *tfprotov6.ValidateResourceConfigRequest) (*tfprotov6.ValidateResourceConfigResponse, error) {
	return &tfprotov6.ValidateResourceConfigResponse{}, nil
}

func (s *server) ValidateDataResourceConfig(context.Context, *tfprotov6.ValidateDataResourceConfigRequest) (*tfprotov6.ValidateDataResourceConfigResponse, error) {
	return &tfprotov6.ValidateDataResourceConfigResponse{}, nil
}

func (s *server) ConfigureProvider(context.Context, *tfprotov6.ConfigureProviderRequest) (*tfprotov6.ConfigureProviderResponse, error) {
	return &tfprotov6.ConfigureProviderResponse{}, nil
}

func (s *server) PlanResourceChange(_ context.Context, request *tfprotov6.PlanResourceChangeRequest) (*tfprotov6.PlanResourceChangeResponse, error) {
	planned, err := filled(s.schemas.Resources[request.TypeName], request.ProposedNewState)
	if err != nil {
		return nil, err
	}
	return &tfprotov6.PlanResourceChangeResponse{PlannedState: planned}, nil
}

func (s *server) ReadDataSource(_ context.Context, request *tfprotov6.ReadDataSourceRequest) (*tfprotov6.ReadDataSourceResponse, error) {
	state, err := filled(s.schemas.DataSources[request.TypeName], request.Config)
	if err != nil {
		return nil, err
	}
	return &tfprotov6.ReadDataSourceResponse{State: state}, nil
}

// filled is a configuration with the values that AWS would give, which are made from its name.
func filled(b block, config *tfprotov6.DynamicValue) (*tfprotov6.DynamicValue, error) {
	schema, err := b.schema()
	if err != nil {
		return nil, err
	}
	value, err := config.Unmarshal(schema.ValueType())
	if err != nil {
		return nil, err
	}
	attributes := map[string]tftypes.Value{}
	if err := value.As(&attributes); err != nil {
		return nil, err
	}
	name := "made"
	for _, key := range []string{"name_prefix", "name"} {
		if given, ok := attributes[key]; ok && given.IsKnown() && !given.IsNull() {
			if err := given.As(&name); err != nil {
				return nil, err
			}
		}
	}
	for key, a := range b.Attributes {
		if a.Value != "" && attributes[key].IsNull() {
			attributes[key] = tftypes.NewValue(tftypes.String, strings.ReplaceAll(a.Value, "{name}", name))
		}
	}
	state, err := tfprotov6.NewDynamicValue(schema.ValueType(), tftypes.NewValue(schema.ValueType(), attributes))
	return &state, err
}

func (s *server) StopProvider(context.Context, *tfprotov6.StopProviderRequest) (*tfprotov6.StopProviderResponse, error) {
	return &tfprotov6.StopProviderResponse{}, nil
}

func main() {
	program, err := os.Executable()
	if err != nil {
		log.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(program), "schema.json"))
	if err != nil {
		log.Fatal(err)
	}
	made := &server{}
	if err := json.Unmarshal(text, &made.schemas); err != nil {
		log.Fatal(err)
	}
	serve := func() tfprotov6.ProviderServer { return made }
	if err := tf6server.Serve("registry.opentofu.org/hashicorp/aws", serve); err != nil {
		log.Fatal(err)
	}
}
