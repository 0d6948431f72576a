// Swagger UI over the server's own description, asked with the key that the page at / keeps.
import { key } from "./ask.js";

window.SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  requestInterceptor(request) {
    if (key()) request.headers.Authorization = `Bearer ${key()}`;
    return request;
  },
});
