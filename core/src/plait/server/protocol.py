"""What goes over the wire, in the shapes of OpenAI's API; fields that OpenAI does not have are vLLM's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class StreamOptions(BaseModel):
    """What a stream brings beside its chunks."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None


class GenerationBody(BaseModel):
    """What completions and chats both take. Null is the same as leaving a field out.

    Fields that are not here are kept as extras, and `parameters.refuse_extras` decides about them by name.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_listed)] = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream shall end with its usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions."""

    prompt: Any
    logprobs: int | None = None


class ChatBody(GenerationBody):
    """Body of POST /v1/chat/completions."""

    messages: list[Any]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class PromptTokensDetails(BaseModel):
    """Where prompt tokens came from."""

    cached_tokens: int


class Usage(BaseModel):
    """Tokens of a call, over all its prompts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(BaseModel):
    """Log-probabilities of a completion: one entry per token in each list.

    `text_offset` counts characters of the generated text before the token.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class Completion(BaseModel):
    """Answer of POST /v1/completions, and chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TopLogprob(BaseModel):
    """One likely token of a position; bytes is null where the tokenizer does not say."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The token of a position, and the likeliest ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a message."""

    content: list[TokenLogprob]
    refusal: None = None


class ChatMessage(BaseModel):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """One answer of the assistant."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class Chat(BaseModel):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class ChatChunkChoice(BaseModel):
    """What a chunk adds to the assistant's message."""

    index: int
    delta: dict[str, str]
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatChunk(BaseModel):
    """Chunk of a chat's stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
