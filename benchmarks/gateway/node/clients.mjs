// Clients of Node against a gateway. `node clients.mjs URL MODEL PROMPT` prints {client: {version, whole, stream, tools}}.
// It lies beside the `node_modules` of package.json when it runs; clients.py takes care of that.

import { readFileSync } from "node:fs";

const [url, model, prompt] = process.argv.slice(2);
const apiKey = "none";
const messages = [{ role: "user", content: prompt }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const described = { name: "weather", description: "The weather in a city." };
const tools = [{ type: "function", function: { ...described, parameters } }];

const joined = async (pieces, textOf = (piece) => piece) => {
  let text = "";
  for await (const piece of pieces) text += textOf(piece) ?? "";
  return text;
};

const langchain = (made) => ({
  whole: async () => (await (await made()).invoke(prompt)).text,
  stream: async () => joined(await (await made()).stream(prompt), (piece) => piece.text),
  tools: async () => JSON.stringify((await (await made()).bindTools(tools).invoke(prompt)).tool_calls[0].args),
});

const vercel = (made) => ({
  whole: async () => (await (await import("ai")).generateText({ model: await made(), prompt })).text,
  stream: async () => joined((await import("ai")).streamText({ model: await made(), prompt }).textStream),
  tools: async () => {
    const { generateText, stepCountIs, tool } = await import("ai");
    const { z } = await import("zod");
    const inputSchema = z.object({ city: z.string() });
    const weather = tool({ ...described, inputSchema, execute: ({ city }) => `Rain in ${city}` });
    return (await generateText({ model: await made(), prompt, tools: { weather }, stopWhen: stepCountIs(3) })).text;
  },
});

const openai = async () => new (await import("openai")).default({ baseURL: `${url}/v1`, apiKey });
const anthropic = async () => new (await import("@anthropic-ai/sdk")).default({ baseURL: url, apiKey });
const limited = { model, messages, max_tokens: 100 };

const clients = {
  openai: {
    whole: async () => (await (await openai()).chat.completions.create({ model, messages })).choices[0].message.content,
    stream: async () =>
      joined(
        await (await openai()).chat.completions.create({ model, messages, stream: true }),
        (piece) => piece.choices[0]?.delta.content,
      ),
    tools: async () =>
      (await (await openai()).chat.completions.create({ model, messages, tools })).choices[0].message.tool_calls[0]
        .function.arguments,
  },
  "openai, responses": {
    whole: async () => (await (await openai()).responses.create({ model, input: prompt })).output_text,
    stream: async () =>
      joined(await (await openai()).responses.create({ model, input: prompt, stream: true }), (event) =>
        event.type === "response.output_text.delta" ? event.delta : "",
      ),
    tools: async () =>
      (
        await (await openai()).responses.create({
          model,
          input: prompt,
          tools: [{ type: "function", ...described, parameters, strict: false }],
        })
      ).output.find((item) => item.type === "function_call").arguments,
  },
  "@anthropic-ai/sdk": {
    whole: async () => (await (await anthropic()).messages.create(limited)).content[0].text,
    stream: async () => (await anthropic()).messages.stream(limited).finalText(),
    tools: async () =>
      JSON.stringify(
        (
          await (await anthropic()).messages.create({ ...limited, tools: [{ ...described, input_schema: parameters }] })
        ).content.find((block) => block.type === "tool_use").input,
      ),
  },
  "ai, @ai-sdk/openai-compatible": vercel(async () =>
    (await import("@ai-sdk/openai-compatible")).createOpenAICompatible({ name: "x", baseURL: `${url}/v1`, apiKey })(model),
  ),
  "ai, @ai-sdk/openai": vercel(async () =>
    (await import("@ai-sdk/openai")).createOpenAI({ baseURL: `${url}/v1`, apiKey })(model),
  ),
  "ai, @ai-sdk/anthropic": vercel(async () =>
    (await import("@ai-sdk/anthropic")).createAnthropic({ baseURL: `${url}/v1`, apiKey })(model),
  ),
  "@langchain/openai": langchain(
    async () => new (await import("@langchain/openai")).ChatOpenAI({ model, apiKey, configuration: { baseURL: `${url}/v1` } }),
  ),
  "@langchain/anthropic": langchain(
    async () =>
      new (await import("@langchain/anthropic")).ChatAnthropic({ model, apiKey, anthropicApiUrl: url, maxTokens: 100 }),
  ),
};

const versions = JSON.parse(readFileSync(new URL("package.json", import.meta.url), "utf8")).dependencies;
const found = {};
for (const [name, kinds] of Object.entries(clients)) {
  const packages = name.split(", ").map((part) => versions[part]);
  found[name] = { version: packages.filter(Boolean).join(", ") };
  for (const [kind, ask] of Object.entries(kinds))
    try {
      found[name][kind] = { text: await ask() };
    } catch (error) {
      found[name][kind] = { error: `${error.name}: ${error.message}` };
    }
}
console.log(JSON.stringify(found));
