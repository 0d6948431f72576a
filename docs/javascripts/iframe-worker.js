// Pages that are opened as files may start no worker, which the theme's search wants. A hidden frame takes its place. The
// theme looks for a script with "iframe-worker" in its name, and would take one from another host.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    #frame = document.createElement("iframe");
    #waiting = [];
    #isReady = false;

    constructor(url) {
      super();
      this.#frame.hidden = true;
      document.body.append(this.#frame);
      const { contentWindow: inside, contentDocument: page } = this.#frame;
      // What the script says, this object's listeners hear.
      inside.postMessage = (data) => this.#tell(new MessageEvent("message", { data }));
      const script = page.createElement("script");
      script.src = new URL(url, document.baseURI);
      script.onload = () => {
        this.#isReady = true;
        this.#waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.onerror = () => this.#tell(new ErrorEvent("error", { message: `cannot load ${script.src}` }));
      page.body.append(script);
    }

    postMessage(data) {
      const { contentWindow: inside } = this.#frame;
      if (this.#isReady) inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      else this.#waiting.push(data);
    }

    terminate() {
      this.#frame.remove();
    }

    #tell(event) {
      this.dispatchEvent(event);
      this[`on${event.type}`]?.(event);
    }
  }
  window.IFrameWorker = window.Worker = IFrameWorker;
}
