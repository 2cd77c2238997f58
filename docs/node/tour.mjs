// A client of bursar made from the .proto files alone: node tour.mjs DATASET RHO (docs/node-client.md says how to run it).
import { readFileSync } from "node:fs";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const { BURSAR_ADDRESS, BURSAR_TOKEN, BURSAR_CA, BURSAR_PROTO = "../../proto" } = process.env, [, , name, rho] = process.argv;
const options = { includeDirs: [BURSAR_PROTO], keepCase: true, longs: String, enums: String, defaults: true };
const contract = loader.loadSync(["bursar_proto/v1/catalog.proto", "bursar_proto/v1/fit.proto"], options);
const { CatalogService, FitService } = grpc.loadPackageDefinition(contract).bursar.v1;
const authority = grpc.credentials.createSsl(readFileSync(BURSAR_CA));
const [catalog, fits] = [CatalogService, FitService].map((Service) => new Service(BURSAR_ADDRESS, authority));
const token = grpc.Metadata.fromHttp2Headers({ authorization: `Bearer ${BURSAR_TOKEN}` });
const ask = (service, method, request) => promisify(service[method]).call(service, request, token);
const amount = ({ epsilon, share }) => `epsilon ${epsilon.toPrecision(3)} (${(100 * share).toPrecision(3)} %)`;
for (const { name, remaining: left } of (await ask(catalog, "ListDatasets", {})).datasets)
  console.log(`${name}: ${Math.round((100 * left.cost_units) / left.cap_cost_units)} % of the budget is left`);
const { dataset } = await ask(catalog, "GetDataset", { dataset: name });
const columns = dataset.columns.filter((column) => column.numeric).map((column) => column.name).slice(-2);
const dpem = { request_id: `node-${Date.now()}`, dataset: name, columns, n_components: 2, spend: { rho: Number(rho) } };
const { price, fits_left, expected } = await ask(fits, "Preview", { dpem });
const errors = expected.find(({ name }) => name === "mean_error").values;
console.log(`price: ${amount(price)}; ${fits_left} like it are left; errors of means: ${errors}`);
for await (const { receipt, model } of fits.FitDPEM(dpem, token)) {
  if (receipt) console.log(`receipt: entry ${receipt.entry}, ${amount(receipt.price)}`);
  if (model) console.log(`weights: ${model.weights.values}; means of ${columns}: ${model.means.values}`);
}
for (const one of (await ask(catalog, "ListReleases", {})).releases) console.log(`bought: ${one.entry} ${one.method} ${one.state}`);
const refused = (error) => console.log(`refused: ${grpc.status[error.code]}: ${error.details}`);
fits.FitDPEM({ ...dpem, request_id: `${dpem.request_id}-b`, spend: { rho: 1000 } }, token).on("data", console.log).on("error", refused);
