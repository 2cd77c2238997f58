// Ask bursar with Node.js and no package: node tour.mjs DATASET COLUMN COLUMN RHO (docs/howto-json.md says how to run it).
const { BURSAR_GATEWAY, BURSAR_TOKEN } = process.env, [, , dataset, first, second, rho] = process.argv;
const headers = { authorization: `Bearer ${BURSAR_TOKEN}`, "content-type": "application/json" };
const ask = async (method, body) => {
  const answer = await fetch(`${BURSAR_GATEWAY}/bursar.v1.${method}`, { method: "POST", headers, body: JSON.stringify(body) });
  const lines = (await answer.text()).trim().split("\n").map((line) => JSON.parse(line));
  if (!answer.ok) throw new Error(`${lines[0].code}: ${lines[0].message}`);
  return lines;
};
const dpem = { dataset, columns: [first, second], n_components: 2, spend: { rho: Number(rho) } };
for (const { name } of (await ask("CatalogService/ListDatasets", {}))[0].datasets) console.log(`dataset: ${name}`);
const [{ price }] = await ask("FitService/Preview", { dpem });
console.log(`price: epsilon ${price.epsilon.toPrecision(3)} (${(100 * price.share).toPrecision(3)} %)`);
const request_id = `node-${Date.now()}`; // keep it until the model is there: retries are free
for (const { receipt, model } of await ask("FitService/FitDPEM", { ...dpem, request_id })) {
  if (receipt) console.log(`receipt: entry ${receipt.entry}`);
  if (model) console.log(`weights: ${model.weights.values}\nmeans: ${model.means.values}`);
}
const dear = { ...dpem, request_id: `${request_id}-b`, spend: { rho: 1000 } };
await ask("FitService/FitDPEM", dear).catch((error) => console.log(`refused: ${error.message}`));
