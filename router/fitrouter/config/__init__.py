"""Settings of fitrouter.yaml, validated with messages that name the remedy."""

from __future__ import annotations

from fitrouter.config._config import Config
from fitrouter.config._models import (
    PROVIDERS_GROUP,
    AddedProviderConfig,
    Capability,
    EmbeddingConfig,
    ModelAddition,
    ModelConfig,
    PricesConfig,
    ProviderConfig,
    VariantConfig,
    is_endpoint,
)
from fitrouter.config._policy import (
    BudgetConfig,
    CandidateConfig,
    FeedbackConfig,
    ObjectiveConfig,
    PolicyConfig,
    SessionConfig,
    TenantBudgetConfig,
)
from fitrouter.config._reading import load_config, load_yaml, parse_addition, parse_config, read_addition, section_in
from fitrouter.config._scoring import QuizConfig, RewardModelConfig, ScorerConfig
from fitrouter.config._section import Fraction
from fitrouter.config._server import (
    AdditionsConfig,
    ColdConfig,
    KeyConfig,
    RayConfig,
    RayGatewaysConfig,
    RayReplicasConfig,
    RayScorersConfig,
    ServerConfig,
    cold_place,
)

__all__ = [
    "PROVIDERS_GROUP",
    "AddedProviderConfig",
    "AdditionsConfig",
    "BudgetConfig",
    "CandidateConfig",
    "Capability",
    "ColdConfig",
    "Config",
    "EmbeddingConfig",
    "FeedbackConfig",
    "Fraction",
    "KeyConfig",
    "ModelAddition",
    "ModelConfig",
    "ObjectiveConfig",
    "PolicyConfig",
    "PricesConfig",
    "ProviderConfig",
    "QuizConfig",
    "RayConfig",
    "RayGatewaysConfig",
    "RayReplicasConfig",
    "RayScorersConfig",
    "RewardModelConfig",
    "ScorerConfig",
    "ServerConfig",
    "SessionConfig",
    "TenantBudgetConfig",
    "VariantConfig",
    "cold_place",
    "is_endpoint",
    "load_config",
    "load_yaml",
    "parse_addition",
    "parse_config",
    "read_addition",
    "section_in",
]
