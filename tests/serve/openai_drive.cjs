// node openai_drive.cjs URL: what the client of OpenAI from npm gets, as JSON.
"use strict";
const OpenAI = require("openai");

const TOOLS = [
  {
    type: "function",
    function: {
      name: "weather",
      parameters: {
        type: "object",
        properties: { city: { type: "string", maxLength: 8 } },
        required: ["city"],
        additionalProperties: false,
      },
    },
  },
];

(async () => {
  const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 3 });
  const asked = { model: "m", messages: [{ role: "user", content: "hello" }], seed: 5, max_tokens: 6, ignore_eos: true };
  const models = (await client.models.list()).data.map((model) => model.id);
  const answer = await client.chat.completions.create(asked);
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  const responded = (await client.chat.completions.create({ ...asked, user: "somebody" })).choices[0].message.content;
  let refused = null;
  try {
    await client.chat.completions.create({ ...asked, temprature: 1 });
  } catch (error) {
    refused = { status: error.status, param: error.param, code: error.code };
  }
  const withTools = { model: "m", messages: asked.messages, seed: 1, tools: TOOLS, tool_choice: "required" };
  const call = (await client.chat.completions.create(withTools)).choices[0].message.tool_calls[0].function;
  const runner = client.chat.completions.stream(withTools);
  const called = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0].function;
  const form = (
    await client.chat.completions.create({
      model: "m", messages: asked.messages, seed: 1, response_format: { type: "regex", regex: "[0-9]{4}" },
    })
  ).choices[0].message.content;
  console.log(
    JSON.stringify({
      models, whole: answer.choices[0].message.content, streamed, responded, usage: answer.usage, refused,
      call: { name: call.name, arguments: call.arguments },
      called: { name: called.name, arguments: called.arguments },
      form,
    }),
  );
})();
